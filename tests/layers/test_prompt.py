"""Related datasets before the context: predictions in a batch equal predictions for single explicit sequences."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from iclbench.backbones import gpt2, pair_sequence
from iclbench.backbones.base import TaskShape
from iclbench.backbones.gpt2 import GPT2Settings
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.core.episodes import Episodes, Points
from iclbench.layers.positions import LearnedPositions
from iclbench.layers.state_space.systems import LowRankStateSpace
from iclbench.registry import BACKBONES
from tests.backbones.test_sequence import LargestTensor
from tests.refusals import refused

SIZES = {
    "gpt2": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2},
    "gpt2-learned": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2, "positions": "learned"},
    "gpt2-rotary": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2, "positions": "rotary"},
    "mamba": {"layers": 2, "width": 8, "state": 4},
    "s4": {"layers": 2, "width": 8, "state": 8},
    "s4d": {"layers": 2, "width": 8, "state": 8},
}
NAMES = list(SIZES)


def model(name: str, related: int = 3, **settings: object) -> SequenceBackbone:
    """Build a model with nonzero marks in float64. The kernel of S4 is longer than all sequences of these tests."""
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    shape = TaskShape(x_dim=2, points=60, question="targets", related=related)
    backbone = cls(cls.Settings(**SIZES[name] | settings), shape).eval()
    if backbone.marks is not None:
        backbone.marks.related.data.normal_()
    return backbone.double()


def draw(*shape: int, seed: int) -> Points:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(*shape, dim, generator=generator, dtype=torch.float64) for dim in (2, 1))
    return Points(x, y, torch.rand(shape, generator=generator) < 0.7)


def example() -> tuple[Points, Points]:
    """Return five contexts, one of them empty, with 0 to 3 related datasets each. Some points of contexts and datasets
    are masked, and one episode has only the second dataset."""
    context, related = draw(5, 7, seed=1), draw(5, 3, 6, seed=2)
    has_dataset = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0]], dtype=torch.bool)
    has_context = torch.tensor([1, 1, 0, 1, 1], dtype=torch.bool)
    return (
        replace(context, mask=context.mask & has_context[:, None]),
        replace(related, mask=related.mask & has_dataset[..., None]),
    )


def explicit_output(backbone: SequenceBackbone, context: Points, related: Points | None, b: int, x: Tensor) -> Tensor:
    """Return the prediction at x, `(2,)`, for one episode: the output at the last token of an explicit sequence.
    Learned positions start at 0 in every dataset and in the context."""
    read, tokens = backbone.read_in, []
    restarts, token_positions = isinstance(getattr(backbone, "positions", None), LearnedPositions), []
    for dataset in () if related is None else related.map(lambda t: t[b]).mask.nonzero()[:, 0].unique().tolist():
        marks = backbone.marks
        for n in related.mask[b, dataset].nonzero()[:, 0]:
            tokens.append(read.inputs(related.x[b, dataset, n][None, None])[0, 0] + marks.related)
            tokens.append(read.outputs(related.y[b, dataset, n][None, None])[0, 0] + marks.related)
        tokens += [marks.separator[0], marks.separator[1]]
        token_positions += range(len(tokens) - len(token_positions))
    for n in context.mask[b].nonzero()[:, 0]:
        tokens += [read.inputs(context.x[b, n][None, None])[0, 0], read.outputs(context.y[b, n][None, None])[0, 0]]
    tokens.append(read.inputs(x[None, None])[0, 0])
    token_positions += range(len(tokens) - len(token_positions))
    sequence = torch.stack(tokens)[None]
    if not restarts:
        return backbone.read_out(backbone.trunk(sequence)[0, -1])
    table, backbone.positions = backbone.positions, None
    hidden = backbone.trunk(sequence + table.weight[token_positions])
    backbone.positions = table
    return backbone.read_out(hidden[0, -1])


@pytest.fixture(params=NAMES)
def backbone(request: pytest.FixtureRequest) -> SequenceBackbone:
    return model(request.param)


@pytest.mark.parametrize("with_related", [True, False])
def test_predictions_at_targets_equal_predictions_for_explicit_sequences(
    backbone: SequenceBackbone, with_related: bool
) -> None:
    """The gradients of all parameters are equal, too."""
    context, datasets = example()
    related, x = datasets if with_related else None, draw(5, 2, seed=3).x
    actual = backbone.predict_targets(context, x, related).mean
    expected = torch.stack(
        [explicit_output(backbone, context, related, b, x[b, q]) for b in range(5) for q in range(2)]
    )
    torch.testing.assert_close(actual.flatten(0, 1), expected, atol=1e-9, rtol=1e-9)
    weights = [p for p in backbone.parameters() if with_related or not any(p is m for m in backbone.marks.parameters())]
    for a, b in zip(*(torch.autograd.grad(t.square().sum(), weights) for t in (actual, expected)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("segment", [3, 512])
@pytest.mark.parametrize("shifted", [False, True])
def test_predictions_after_prefixes_equal_predictions_for_explicit_sequences(
    backbone: SequenceBackbone, segment: int, shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_sequence, "SEGMENT_SIZE", segment)
    (points, related), queries = example(), draw(5, 7, seed=3).x
    with torch.no_grad():
        actual = backbone.predict_next(points, related, x_query=queries if shifted else None).mean
        for b, n in points.mask.nonzero().tolist()[::3]:
            before = replace(points, mask=points.mask & (torch.arange(7) < n))
            x = (queries if shifted else points.x)[b, n]
            torch.testing.assert_close(
                actual[b, n], explicit_output(backbone, before, related, b, x), atol=1e-9, rtol=1e-9
            )


def test_the_last_prediction_by_layer_equals_the_prediction_with_related_datasets(backbone: SequenceBackbone) -> None:
    (context, related), x = example(), draw(5, 2, seed=3).x
    with torch.no_grad():
        last = backbone.predict_by_layer(context, x, related)[-1].mean
        torch.testing.assert_close(last, backbone.predict_targets(context, x, related).mean)


@torch.no_grad()
def test_a_context_can_be_read_in_segments_of_any_length(
    backbone: SequenceBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context, related), x = example(), draw(5, 2, seed=3).x
    expected = backbone.predict_targets(context, x, related).mean
    monkeypatch.setattr(pair_sequence, "SEGMENT_SIZE", 4)
    for edges in ([0, 7], [3, 7], [0, 1, 5, 7]):
        state = backbone.condition(context.span(0, edges[0]), related)
        for start, stop in pairwise(edges):
            state = backbone.update(state, context.span(start, stop))
        torch.testing.assert_close(backbone.query(state, x).mean, expected, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_padding_does_not_change_predictions(backbone: SequenceBackbone) -> None:
    """A masked dataset is equivalent to a missing one, and values at masked points are not read."""
    (context, related), x = example(), draw(5, 2, seed=3).x
    absent = replace(related, mask=torch.zeros_like(related.mask))
    without_related = backbone.predict_targets(context, x).mean
    torch.testing.assert_close(backbone.predict_targets(context, x, absent).mean, without_related, atol=1e-9, rtol=0)
    expected = backbone.predict_targets(context, x, related).mean
    padded = [replace(p, x=torch.where(p.mask[..., None], p.x, 1e3), y=p.y * p.mask[..., None]) for p in example()]
    torch.testing.assert_close(backbone.predict_targets(padded[0], x, padded[1]).mean, expected, atol=1e-9, rtol=0)


@torch.no_grad()
def test_related_datasets_of_other_episodes_do_not_change_predictions(backbone: SequenceBackbone) -> None:
    (context, related), x = example(), draw(5, 2, seed=3).x
    batched = backbone.predict_targets(context, x, related).mean
    for b in range(5):
        rows = slice(b, b + 1)
        separate = backbone.predict_targets(context[rows], x[rows], related[rows]).mean
        torch.testing.assert_close(batched[rows], separate, atol=1e-9, rtol=0)


@torch.no_grad()
def test_masked_points_leave_the_initial_state_exactly_zero() -> None:
    """The model is in float32, as in practice. The tolerances of the other tests would hide small values."""
    for name in ("mamba", "s4", "s4d"):
        backbone = model(name).float()
        tokens, no_tokens = torch.randn(2, 150, 8), torch.zeros(2, 150, dtype=torch.bool)
        state = backbone.absorb(backbone.start(2), tokens, no_tokens)
        assert all(not t.any() for t in state.tensors().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_model_for_a_task_without_related_datasets_has_no_marks_and_ignores_them(name: str) -> None:
    plain, (context, related), x = model(name, related=0), example(), draw(5, 2, seed=3).x
    assert not plain.uses_related
    assert not [key for key in plain.state_dict() if key.startswith("marks")]
    with torch.no_grad():
        ignored = plain.predict_targets(context, x, related).mean
        assert torch.equal(ignored, plain.predict_targets(context, x).mean)
    assert set(model(name).state_dict()) - set(plain.state_dict()) == {"marks.related", "marks.separator"}


def test_marks_that_are_initialised_at_zero_have_nonzero_gradients(backbone: SequenceBackbone) -> None:
    backbone.marks.related.data.zero_()
    (context, related), targets = example(), Points.full(*(getattr(draw(5, 4, seed=3), key) for key in "xy"))
    episodes = Episodes(context, targets.mask, targets, related)
    backbone.loss(episodes, 0.0, torch.Generator())[0].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.marks.parameters())


def test_related_datasets_with_a_different_input_dimension_are_refused(backbone: SequenceBackbone) -> None:
    context, related = example()
    with refused("bad-value", "inputs", 3, 2):
        backbone.predict_targets(context, context.x, replace(related, x=torch.zeros(5, 3, 6, 3)))
    with refused("bad-value", "outputs", 4, 1):
        backbone.predict_targets(context, context.x, replace(related, y=torch.zeros(5, 3, 6, 4)))


def test_learned_positions_cover_the_longest_related_dataset_and_its_separator() -> None:
    torch.manual_seed(0)
    settings = GPT2Settings(layers=1, width=16, heads=2, positions="learned")
    for points, related_points, longest in ((5, 9, 10), (9, 5, 10)):
        shape = TaskShape(x_dim=2, points=points, question="targets", related=2, related_points=related_points)
        backbone = gpt2.GPT2(settings, shape).double()
        full = replace(draw(1, 2, related_points, seed=1), mask=torch.ones(1, 2, related_points, dtype=torch.bool))
        context = replace(draw(1, points, seed=2), mask=torch.ones(1, points, dtype=torch.bool))
        assert backbone.longest == longest
        assert backbone.predict_targets(context, context.x[:, :1], full).mean.isfinite().all()
        with refused("not-applicable", f"{2 * longest} tokens"):
            backbone.predict_targets(context.append(context), context.x[:, :1], full)


@torch.no_grad()
def test_attention_needs_no_mask_per_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of different lengths would need different masks, which would be by far the largest tensor."""
    monkeypatch.setattr(gpt2, "_CPU_GROUPS", 1)
    backbone, context = model("gpt2"), draw(8, 200, seed=1)
    with LargestTensor() as largest:
        backbone.condition(context, draw(8, 3, 60, seed=2))
    assert largest.elements < 8 * 500**2 / 4


def test_s4_computes_its_dense_system_once_per_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, (context, related) = model("s4"), example()
    calls, dense_system = [], LowRankStateSpace._dense_system
    monkeypatch.setattr(LowRankStateSpace, "_dense_system", lambda system: calls.append(1) or dense_system(system))
    backbone.predict_targets(context, context.x, related)
    assert len(calls) == 2  # one call per layer
