"""Mamba: published size, initialisation as in mamba-ssm, agreement with the transformers library, and states."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.backbones.mamba import Mamba, MambaSettings
from iclbench.config.resolution import resolve_run
from iclbench.core.files import save_tensors
from iclbench.core.task import TaskShape
from iclbench.layers.depthwise_convolution import depthwise_convolution
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.backbones.random_points import points
from tests.refusals import refused


def model(**settings: object) -> Mamba:
    torch.manual_seed(0)
    sizes = {"layers": 3, "width": 24, "state": 4, **settings}
    return Mamba(MambaSettings(**sizes), TaskShape(x_dim=5, points=12)).eval()


def transformers_mamba(ours: Mamba) -> torch.nn.Module:
    """`transformers.MambaModel` with our weights, which have the same names."""
    from transformers import MambaConfig, MambaModel

    s = ours.settings
    config = MambaConfig(
        vocab_size=1,
        hidden_size=s.width,
        state_size=s.state,
        num_hidden_layers=s.layers,
        conv_kernel=s.conv,
        expand=s.expand,
        time_step_rank=math.ceil(s.width / 16),
        use_cache=False,
    )
    reference = MambaModel(config).eval()
    weights = {k: v for k, v in ours.state_dict().items() if k.startswith(("layers.", "norm_f."))}
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == ["embeddings.weight"]
    return reference


def test_the_number_of_parameters_is_10_52_million_as_in_the_paper() -> None:
    assert Mamba(MambaSettings(), TaskShape(x_dim=20, points=41)).parameter_count == pytest.approx(10.52e6, rel=1e-3)


def test_predictions_equal_those_of_transformers() -> None:
    ours, batch = model(), points()
    with torch.no_grad():
        hidden = transformers_mamba(ours)(inputs_embeds=ours.read_in(batch)).last_hidden_state
        expected = ours.read_out(hidden[:, ::2])
    torch.testing.assert_close(ours.predict_next(batch).mean, expected, atol=1e-6, rtol=1e-5)


def test_gradients_equal_those_of_transformers() -> None:
    ours, batch = model(), points()
    reference = transformers_mamba(ours)
    ours.predict_next(batch).loss(batch.y).mean().backward()
    hidden = reference(inputs_embeds=ours.read_in(batch).detach()).last_hidden_state
    (ours.read_out(hidden[:, ::2]) - batch.y).square().sum(-1).mean().backward()
    expected = dict(reference.named_parameters())
    for name, p in ours.named_parameters():
        if name in expected:
            torch.testing.assert_close(p.grad, expected[name].grad, atol=2e-6, rtol=1e-4, msg=name)


def test_weights_are_initialised_as_in_mamba_ssm() -> None:
    """Linear layers have PyTorch's default initialisation, output layers are divided by sqrt(layers), steps are in
    [0.001, 0.1], A is -(1, ..., S), and D is 1."""
    mixer = model(layers=4, width=64, state=16).layers[1].mixer
    assert mixer.in_proj.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 64), rel=0.05)
    assert mixer.out_proj.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 128) / 2, rel=0.05)
    steps = F.softplus(mixer.dt_proj.bias)
    assert steps.min() >= 1e-3 - 1e-6
    assert steps.max() <= 1e-1 + 1e-5
    assert steps.log().mean().item() == pytest.approx(math.log(1e-2), abs=0.4)
    torch.testing.assert_close(torch.exp(mixer.A_log), torch.arange(1.0, 17).expand(128, 16))
    assert bool((mixer.D == 1).all())


def test_updates_in_chunks_of_any_size_give_the_predictions_of_one_pass() -> None:
    """The transformers library cannot be the reference: its cache restarts on chunks of more than one token, and points
    consist of two tokens."""
    ours, batch = model(), points()
    tokens = ours.read_in(batch)
    block = ours.layers[0]
    expected = block(tokens)
    for sizes in ([1] * 24, [2] * 12, [5, 1, 11, 7], [24]):
        state, outputs = block.start(3), []
        for chunk in tokens.split(sizes, 1):
            y, state = block.resume(chunk, state)
            outputs.append(y)
        torch.testing.assert_close(torch.cat(outputs, 1), expected, atol=1e-6, rtol=1e-5)


def test_the_size_of_the_state_does_not_depend_on_the_number_of_points() -> None:
    ours = model()
    short, long = (ours.condition(points(count=n)).nbytes for n in (4, 12))
    assert short == long == 3 * 3 * (3 + 4) * 48 * 4


def test_the_convolution_with_channels_last_equals_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(2)
    arguments = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 9, 3), (3, 4), (3,))]

    def torch_convolution(padded: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv1d(padded.mT, weight.unsqueeze(1), bias, groups=3).mT

    torch.testing.assert_close(depthwise_convolution(*arguments), torch_convolution(*arguments))
    assert torch.autograd.gradcheck(depthwise_convolution, [t.requires_grad_() for t in arguments])


def test_the_recurrence_and_the_residual_stream_are_in_float32_under_autocast() -> None:
    ours, batch = model(), points()
    exact = ours.predict_next(batch).mean
    block = ours.layers[0]
    with torch.autocast("cpu", torch.bfloat16):
        tokens = ours.read_in(batch)
        outputs = [block(tokens), *block.fork(tokens, tokens[:, ::2])[:2], block.peek(tokens, block.start(3))]
        rough = ours.predict_next(batch)
        rough.loss(batch.y).mean().backward()
    assert {t.dtype for t in outputs} == {torch.float32}
    assert block.mixer.A_log.grad.isfinite().all()
    torch.testing.assert_close(rough.mean.float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("backbone", "endings"),
    [
        ("mamba", {"A_log", "D"}),
        ("mamba2", {"A_log", "D", "dt_bias"}),
        ("mamba3", {"D", "dt_bias"}),
        ("gated-deltanet", {"A_log", "dt_bias"}),
        ("kda", {"A_log", "dt_bias"}),
        ("gated-deltaproduct", {"A_log", "dt_bias"}),
        ("mesa", {"penalty"}),
        ("hyena", {"skip", "frequency"}),
    ],
)
def test_decays_skip_weights_and_frequencies_have_no_weight_decay(backbone: str, endings: set[str]) -> None:
    config = resolve_run("linear", backbone, "smoke")
    ours = config.build(config.task.build())
    decayed, undecayed = ours.parameter_groups()
    assert undecayed["weight_decay"] == 0 and decayed.keys() == {"params"}
    names = {id(p): name for name, p in ours.named_parameters()}
    expected = [f"layers.{layer}.mixer.{ending}" for layer in range(len(ours.layers)) for ending in endings]
    assert sorted(names[id(p)] for p in undecayed["params"]) == sorted(expected)
    assert sum(p.numel() for group in (decayed, undecayed) for p in group["params"]) == ours.parameter_count


def test_a_run_can_be_loaded_without_the_back_end_that_was_used_in_training(tmp_path: Path) -> None:
    """Weights that were trained on a CUDA device can be used on a CPU. Only training needs the back end in the
    settings.
    """
    run = create(tmp_path, resolve_run("linear", "mamba", "smoke", overrides=["train.steps=1", "backbone.scan=torch"]))
    train(run)
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('scan = "torch"', 'scan = "mamba-ssm"'))
    run_with_mamba_ssm = Run(run.path)
    weights = run.load().state_dict()
    save_tensors(run.weights, weights, {"config": run_with_mamba_ssm.hash}, digest=True)
    assert run_with_mamba_ssm.load().settings.scan == "auto"
    if not torch.cuda.is_available():
        with refused("not-supported", "backbone.scan=mamba-ssm"):
            run_with_mamba_ssm.config.build(run_with_mamba_ssm.config.task.build())


def test_states_can_be_exchanged_between_back_ends(tmp_path: Path) -> None:
    ours, reference = model(), model(scan="torch")
    reference.load_state_dict(ours.state_dict())
    ours.save_state(ours.condition(points()), tmp_path / "state.safetensors")
    assert reference.load_state(tmp_path / "state.safetensors").nbytes == ours.condition(points()).nbytes
