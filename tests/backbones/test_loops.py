"""Looped models against independent loops over the blocks: answers, gradients, the loss over a window, and states."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.gpt2 import GPT2Settings
from iclbench.backbones.image_backbone import build_backbone
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.config.resolution import resolve_run
from iclbench.core.episodes import Episodes, Points
from iclbench.core.settings import validate
from iclbench.evaluation.costs.flops import count_flops
from iclbench.layers.causal_transformer import ALL_TOKENS
from iclbench.layers.positions import LearnedPositions
from iclbench.registry import BACKBONES
from iclbench.store.identity import run_id
from tests.backbones.random_points import points
from tests.backbones.transformers_gpt2 import transformers_gpt2
from tests.refusals import refused

LOOPS, WINDOW = 5, 2
GPT2_SIZES = {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3}
HYBRID_SIZES = {"layers": 3, "width": 8, "heads": 2, "state": 4, "mixers": ["rwkv7", "attention", "mamba2"]}
SIZES = {"gpt2": GPT2_SIZES, "hybrid": HYBRID_SIZES}


def model(name: str, loops: int = LOOPS, window: int | None = WINDOW, **changes: object) -> SequenceBackbone:
    """Build a looped model in float64, whose weights do not depend on `loops`."""
    torch.manual_seed(0)
    cls, shape = BACKBONES.get(name), {"x_dim": 5, "points": 12, **changes.pop("shape", {})}
    settings = SIZES[name] | {"loops": loops, "loop_window": window} | changes
    return cls(cls.Settings(**settings), TaskShape(**shape)).double().eval()


def batch(count: int = 12) -> Points:
    drawn = points(count=count)
    return Points.full(drawn.x.double(), drawn.y.double())


def iterates(ours: SequenceBackbone, data: Points, detached: int = 0) -> Iterator[Tensor]:
    """Yield the raw outputs after each iteration, written from the paper's equation.

    The reference of gpt2 is the model of the transformers library, which adds the positions to each input, as in the
    release. The first `detached` iterations have no gradients.
    """
    if hasattr(ours, "blocks"):
        theirs = transformers_gpt2(layers=2, width=16, heads=2, positions=24, init_std=0.3).double().eval()
        if isinstance(ours.positions, LearnedPositions):
            theirs.wpe.weight = ours.positions.weight
        else:
            table = torch.zeros(24, 16) if ours.positions is None else ours.positions(torch.arange(24))
            theirs.wpe.weight.data = table.double()
        for (_, own), (name, _) in zip(ours.blocks.named_parameters(), list(theirs.h.named_parameters()), strict=True):
            owner, _, key = name.rpartition(".")
            setattr(theirs.h.get_submodule(owner), key, own)
        theirs.ln_f.weight, theirs.ln_f.bias = ours.norm.weight, ours.norm.bias

        def apply(x: Tensor) -> Tensor:
            return theirs(inputs_embeds=x).last_hidden_state
    else:

        def apply(x: Tensor) -> Tensor:
            for block in ours.layers:
                x = block(x)
            return ours.norm(x[..., : ours.settings.width])

    embedded = ours.read_in(data)
    y = torch.zeros_like(embedded)
    for iteration in range(ours.loops):
        if iteration < detached:
            with torch.no_grad():
                y = apply(y + embedded)
        else:
            y = apply(y + embedded)
        yield ours.read_out(y[:, ::2])


def episodes_of(context: Points, targets: Points | None = None, related: Points | None = None) -> Episodes:
    queries = context if targets is None else targets
    return Episodes(context, torch.ones_like(queries.mask), targets, related)


def gradients(backbone: Backbone, loss: Tensor) -> dict[str, Tensor]:
    backbone.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(actual[name], gradient, atol=1e-10, rtol=1e-8), name


CASES = [("gpt2", {}), ("gpt2", {"positions": "learned"}), ("gpt2", {"positions": "sinusoidal"}), ("hybrid", {})]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_answers_and_gradients_equal_those_of_a_loop_over_the_blocks(name: str, changes: dict[str, object]) -> None:
    ours, data = model(name, **changes), batch()
    weights = torch.randn(3, 12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    answer = ours.predict_next(data).mean
    *_, expected = iterates(ours, data)
    assert torch.allclose(answer, expected, atol=1e-10, rtol=0)
    assert_close(gradients(ours, (answer * weights).sum()), gradients(ours, (expected * weights).sum()))


@pytest.mark.parametrize(("name", "changes"), CASES)
@pytest.mark.parametrize("window", [1, 2, LOOPS, None])
def test_the_loss_is_the_mean_over_the_window(name: str, changes: dict[str, object], window: int | None) -> None:
    """As in the release, iterations before the window have no gradients."""
    ours, data = model(name, window=window, **changes), batch()
    loss, _ = ours.loss(episodes_of(data), 0.0, torch.Generator())
    width = window or LOOPS
    separate = [(raw - data.y).square().mean() for raw in iterates(ours, data, detached=LOOPS - width)]
    expected = torch.stack(separate[-width:]).mean()
    assert torch.allclose(loss, expected, atol=1e-10, rtol=0)
    assert_close(gradients(ours, loss), gradients(ours, expected))


@pytest.mark.parametrize("name", SIZES)
def test_the_loss_is_the_mean_of_the_losses_of_models_with_fewer_loops(name: str) -> None:
    """This holds for pairs with separate queries, related datasets, targets, and sequences longer than a segment."""
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    context = batch()
    related = Points.full(draw(3, 2, 6, 5), draw(3, 2, 6, 1))
    queries = Points.full(draw(3, 12, 5), draw(3, 12, 1))
    long = Points.full(draw(1, 600, 5), draw(1, 600, 1))
    cases = [
        ({}, episodes_of(context)),
        ({}, episodes_of(context, queries)),
        ({}, episodes_of(long)),
        ({"related": 2, "related_points": 6}, episodes_of(context, related=related)),
        ({"question": "targets"}, episodes_of(context, queries)),
        ({"question": "targets", "related": 2, "related_points": 6}, episodes_of(context, queries, related)),
        ({"x_dim": 0, "y_dim": 1}, episodes_of(Points.full(draw(3, 12, 0), context.y))),
    ]
    for shape, episodes in cases:
        loss, _ = model(name, shape=shape).loss(episodes, 0.0, torch.Generator())
        last = [model(name, loops, 1, shape=shape) for loops in range(LOOPS - WINDOW + 1, LOOPS + 1)]
        question = shape.get("question", "next")
        separate = [each.ask(episodes, question).loss(episodes.queries.y).mean() for each in last]
        assert torch.allclose(loss, torch.stack(separate).mean(), atol=1e-10, rtol=0), shape


@pytest.mark.parametrize("name", SIZES)
def test_a_model_without_loops_is_the_model_without_these_settings(name: str) -> None:
    torch.manual_seed(0)
    cls, data = BACKBONES.get(name), batch()
    plain = cls(cls.Settings(**SIZES[name]), TaskShape(x_dim=5, points=12)).double().eval()
    once = model(name, loops=1, window=None)
    assert torch.equal(once.predict_next(data).mean, plain.predict_next(data).mean)
    assert plain.parameter_count == model(name, loops=LOOPS).parameter_count


@pytest.mark.parametrize("name", SIZES)
def test_configurations_of_models_without_loops_do_not_contain_the_settings(name: str) -> None:
    """Runs that were trained before the settings existed therefore keep their configuration."""
    default, once, looped = (
        resolve_run("linear", name, "smoke", 0, overrides)
        for overrides in ([], ["backbone.loops=1"], ["backbone.loops=2", "backbone.loop_window=1"])
    )
    assert not default.backbone.settings.keys() & {"loops", "loop_window"}
    assert default.trained_part == once.trained_part and run_id(default) == run_id(once) != run_id(looped)
    assert looped.backbone.settings["loops"] == 2 and looped.backbone.settings["loop_window"] == 1


@pytest.mark.parametrize(("name", "changes"), [*CASES, ("gpt2", {"positions": "rotary"})])
@torch.no_grad()
def test_states_continue_every_iteration(name: str, changes: dict[str, object]) -> None:
    ours, data = model(name, **changes), batch()
    expected = ours.predict_next(data).mean
    state = ours.condition(data.span(0, 0))
    for n in range(data.count):
        assert torch.allclose(ours.query(state, data.x[:, n : n + 1]).mean[:, 0], expected[:, n], atol=1e-10)
        state = ours.update(state, data.span(n, n + 1))
    assert torch.allclose(ours.predict_next(data, x_query=data.x).mean, expected, atol=1e-10)


@pytest.mark.parametrize("name", SIZES)
@torch.no_grad()
def test_a_layer_is_an_iteration(name: str) -> None:
    data = batch()
    layers = model(name).predict_by_layer(data.span(0, 11), data.x[:, 11:])
    assert len(layers) == LOOPS
    for loops, layer in enumerate(layers, 1):
        expected = model(name, loops, None).predict_targets(data.span(0, 11), data.x[:, 11:]).mean
        assert torch.allclose(layer.mean, expected, atol=1e-10)


@pytest.mark.parametrize("name", SIZES)
@torch.no_grad()
def test_flops_and_states_count_every_iteration(name: str) -> None:
    data = batch()
    once, twice, four = (model(name, loops, None) for loops in (1, 2, 4))
    flops = [count_flops(lambda each=each: each.predict_next(data)) for each in (once, twice, four)]
    embedded = once.read_in(data)
    # Only the last iteration omits tokens that are not read.
    iteration = count_flops(lambda: once.trunk(embedded, ALL_TOKENS)) + embedded.numel()
    assert [count - flops[0] for count in flops] == [0, iteration, 3 * iteration]
    tensors = [each.condition(data) for each in (once, twice, four)]
    masks = tensors[0].mask.nbytes if name == "gpt2" else 0
    sizes = [state.nbytes - masks for state in tensors]
    assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]


def test_the_state_size_of_a_recurrent_model_counts_every_iteration() -> None:
    mixers = {"mixers": ["mamba2", "deltanet"], "layers": 2}
    assert model("hybrid", 3, None, **mixers).state_size == 3 * model("hybrid", 1, None, **mixers).state_size


def test_batches_of_looped_models_are_shared_by_processes() -> None:
    assert all(model(name).shares_batches for name in SIZES)


def test_models_with_an_image_encoder_have_the_loss_over_the_window() -> None:
    torch.manual_seed(0)
    settings = GPT2Settings(**GPT2_SIZES, loops=3, loop_window=2)
    shape = {"x_dim": 144, "points": 5, "classes": 4, "x_shape": (12, 12), "head": "categorical", "question": "targets"}
    ours = build_backbone(BACKBONES.get("gpt2"), settings, TaskShape(**shape)).eval()
    context = Points.full(torch.randn(2, 4, 144), torch.randint(4, (2, 4)))
    targets = Points.full(torch.randn(2, 1, 144), torch.randint(4, (2, 1)))
    loss, _ = ours.loss(episodes_of(context, targets), 0.0, torch.Generator())
    layers = ours.predict_by_layer(context, targets.x)
    assert len(layers) == 3
    separate = torch.stack([layer.loss(targets.y).mean() for layer in layers[-2:]])
    assert torch.allclose(loss, separate.mean(), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"loops": 0}, ["loops", 0]),
        ({"loops": 1001}, ["loops", 1001]),
        ({"loops": "many"}, ["loops", "many"]),
        ({"loops": 3, "loop_window": 0}, ["loop_window", 0]),
        ({"loops": 3, "loop_window": 4}, ["backbone.loop_window=4", "backbone.loops=3"]),
        ({"loop_window": 2}, ["backbone.loop_window=2", "backbone.loops=1"]),
    ],
)
def test_impossible_loops_are_refused(settings: dict[str, object], names: list[object]) -> None:
    for name in SIZES:
        with refused("bad-value", name, *names):
            validate(BACKBONES.get(name).Settings, settings, f"backbone '{name}'")
