"""S4 and S4D: the paper's size, initialisation, parameter groups, chunks, and lengths beyond training."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.backbones.base import TaskShape
from iclbench.backbones.s4 import S4, S4D
from iclbench.config.cards import TrainSettings
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.settings import validate
from iclbench.training.step import make_optimiser
from tests.backbones.random_points import points

MODELS = pytest.mark.parametrize("cls", [S4D, S4], ids=["s4d", "s4"])


def model(cls: type[S4D] | type[S4], points: int = 12, **settings: object) -> S4D | S4:
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 12, "state": 16, **settings}
    return cls(cls.Settings(**sizes), TaskShape(x_dim=5, points=points))


def episodes() -> Episodes:
    context = points()
    return Episodes(context=context, scored=context.mask)


def test_the_number_of_parameters_equals_that_of_the_paper() -> None:
    """The model has a read-in layer, 24 blocks of width 435, and a read-out layer: 10.49 million parameters."""
    assert S4D(S4D.Settings(), TaskShape(x_dim=20, points=41)).parameter_count == pytest.approx(10.49e6, rel=1e-3)


def test_s4_shares_its_matrix_between_channels() -> None:
    """S4 has one A, P and B per block, and S4D has one A per channel. S4 therefore has 6 % fewer parameters."""
    count = S4(S4.Settings(layers=1), TaskShape(x_dim=20, points=41)).parameter_count
    read_in, read_out = 21 * 435, 436
    system, block = 435 * (64 + 1) + 3 * 64, 435 * 870 + 870 + 3 * 435
    assert count == read_in + system + block + read_out


@MODELS
def test_step_sizes_are_initialised_log_uniformly_in_their_range(cls: type[S4D] | type[S4]) -> None:
    steps = torch.exp(model(cls, width=400, dt_min=0.01, dt_max=0.5).layers[0].system.log_dt)
    assert 0.01 <= steps.min() < 0.012
    assert 0.4 < steps.max() <= 0.5
    assert steps.log().mean().item() == pytest.approx(math.log(0.01 * 0.5) / 2, abs=0.2)


def test_s4d_is_initialised_with_the_selected_spectrum() -> None:
    for init, second in (("lin", math.pi), ("inv", 16 / math.pi * (16 / 3 - 1))):
        system = model(S4D, init=init).layers[0].system
        torch.testing.assert_close(torch.exp(system.log_A_real), torch.full((12, 8), 0.5))
        torch.testing.assert_close(system.A_imag[:, 1], torch.full((12,), second))


@MODELS
def test_the_initial_output_vector_is_complex_normal(cls: type[S4D] | type[S4]) -> None:
    """Both models start with C ~ N(0, 1). S4 stores C (I - A^L), from which the test recovers C."""
    system = model(cls, width=60).layers[0].system
    C = system.C.flatten(1) if cls is S4D else system._system()[2] / 2
    assert C.std().item() == pytest.approx(math.sqrt(0.5), rel=0.1)


@MODELS
def test_system_parameters_have_a_separate_learning_rate_and_no_weight_decay(cls: type[S4D] | type[S4]) -> None:
    backbone = model(cls, rate_factor=0.1)
    optimiser = make_optimiser(backbone, TrainSettings(steps=1, optimiser="adamw", weight_decay=0.3))
    others, rates = optimiser.param_groups
    names = {id(p): name.rpartition(".")[2] for name, p in backbone.named_parameters()}
    expected = {"log_dt", "log_A_real", "A_imag"} if cls is S4D else {"log_dt", "log_w_real", "w_imag", "P", "B"}
    assert {names[id(p)] for p in rates["params"]} == expected
    assert (rates["lr_factor"], rates["weight_decay"]) == (0.1, 0.0)
    assert others["weight_decay"] == 0.3
    assert not expected & {names[id(p)] for p in others["params"]}
    assert len(rates["params"]) + len(others["params"]) == len(list(backbone.parameters()))


@MODELS
def test_a_block_is_system_gelu_glu_residual_norm(cls: type[S4D] | type[S4]) -> None:
    """The reference implements the equations, with channels last and the convolution as a sum."""
    block = model(cls).layers[0]
    x = torch.randn(2, 7, 12)
    kernel = block.system.kernel(7)
    lags = [sum(kernel[:, k] * x[:, t - k] for k in range(t + 1)) for t in range(7)]
    y = F.gelu(torch.stack(lags, 1) + block.D * x)
    expected = F.layer_norm(x + F.glu(block.mix(y), -1), (12,), block.norm.weight, block.norm.bias)
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-5)


@MODELS
@pytest.mark.parametrize("length", [24, 150])
def test_updates_in_chunks_of_any_size_give_the_predictions_of_one_pass(cls: type[S4D] | type[S4], length: int) -> None:
    """The sequence has the training length, or is longer than S4's kernel."""
    block = model(cls).layers[0].double()
    x = torch.randn(2, length, 12, dtype=torch.float64)
    with torch.no_grad():
        expected = block(x)
        for sizes in ([1] * length, [length], [5, 1, length - 13, 7]):
            state, outputs = block.start(2), []
            for chunk in x.split(sizes, 1):
                y, state = block.resume(chunk, state)
                outputs.append(y)
            torch.testing.assert_close(torch.cat(outputs, 1), expected, atol=1e-9, rtol=1e-9)


@MODELS
def test_float32_is_accurate_beyond_the_training_length(cls: type[S4D] | type[S4]) -> None:
    """The model is built for 41 examples with the state size of the paper. For 500 examples, float32 agrees with
    float64.
    """
    backbone, batch = model(cls, points=41, layers=1, state=64).eval(), points(batch=1, count=500)
    with torch.no_grad():
        actual, exact = (
            backbone.predict_next(batch).mean,
            backbone.double().predict_next(batch.to(dtype=torch.float64)).mean,
        )
    torch.testing.assert_close(actual.double(), exact, atol=1e-4, rtol=1e-4)


@MODELS
def test_gradients_pass_through_states(cls: type[S4D] | type[S4]) -> None:
    """The gradients of `condition` and `query` equal those of one pass over the sequence."""
    backbone, all_points = model(cls).double(), points(count=7).to(dtype=torch.float64)

    def gradients(answer: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(answer.square().sum(), list(backbone.parameters())))

    one_pass = gradients(backbone.predict_next(all_points).mean[:, -1:])
    context, x = all_points.span(0, 6), all_points.x[:, 6:]
    phases = gradients(backbone.predict_targets(context, x).mean)
    for (name, _), actual, expected in zip(backbone.named_parameters(), phases, one_pass, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-8, rtol=1e-6, msg=name)


@MODELS
def test_the_size_of_the_state_does_not_depend_on_the_number_of_points(cls: type[S4D] | type[S4]) -> None:
    short, long = (model(cls).condition(points(count=n)).nbytes for n in (4, 40))
    assert short == long == 2 * 3 * 12 * 16 * 4


@MODELS
@pytest.mark.parametrize("count", [11, 201])
def test_predictions_in_bfloat16_are_close_to_those_in_float32(cls: type[S4D] | type[S4], count: int) -> None:
    """Predictions for `next` and `targets` are compared. Convolutions use a matrix product for 11 points, and the FFT
    for 201 points."""
    backbone, batch = model(cls, points=count), points(count=count)
    context, x = batch.span(0, count - 2), batch.x[:, :2]

    def answers() -> list[Tensor]:
        forked = backbone.predict_next(batch, x_query=batch.x.flip(1))
        return [p.mean for p in (backbone.predict_next(batch), forked, backbone.predict_targets(context, x))]

    with torch.autocast("cpu", torch.bfloat16):
        actual, states = answers(), backbone.condition(context).layers
    assert {state.dtype for layer in states for state in layer} == {torch.float32}
    for low, exact in zip(actual, answers(), strict=True):
        torch.testing.assert_close(low.float(), exact, atol=0.05, rtol=0.05)
        for gradient in torch.autograd.grad(low.float().square().sum(), list(backbone.parameters())):
            assert gradient.dtype == torch.float32
            assert gradient.isfinite().all()


@MODELS
def test_the_state_space_system_is_in_float32_under_autocast(
    cls: type[S4D] | type[S4], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs of the mixing layer and the state have full precision, even for tokens in half precision."""
    block, tokens = model(cls).layers[0], torch.randn(2, 8, 12).bfloat16()
    monkeypatch.setattr(block, "_finish_block", lambda u, y: y.permute(1, 2, 0))

    def outputs(x: Tensor) -> list[Tensor]:
        y, state = block.resume(x, block.start(2))
        return [block(x), y, *state, block.peek(x, state), *block.fork(x, x[:, ::2].flip(1))[:2]]

    with torch.autocast("cpu", torch.bfloat16):
        actual = outputs(tokens)
    torch.testing.assert_close(actual, outputs(tokens.float()), atol=1e-6, rtol=1e-6)


def test_dropout_uses_the_generator_of_the_loss() -> None:
    """Dropout depends only on the seed, is off in eval mode, and does not change the global random state."""
    backbone, batch = model(S4D, dropout=0.5).train(), episodes()

    def loss(seed: int) -> float:
        return backbone.loss(batch, 0.0, torch.Generator().manual_seed(seed))[0].item()

    before = torch.get_rng_state()
    assert loss(0) == loss(0) != loss(1)
    assert torch.equal(before, torch.get_rng_state())
    backbone.eval()
    assert loss(0) == loss(1)


@pytest.mark.parametrize(
    ("settings", "name"), [({"state": 7}, "state"), ({"dt_min": 0.2}, "dt_max"), ({"init": "line"}, "init")]
)
def test_invalid_settings_are_refused(settings: dict[str, object], name: str) -> None:
    with pytest.raises(UsageError) as error:
        validate(S4D.Settings, settings, "-o backbone")
    assert name in str(error.value) and "\n" not in str(error.value)
