"""Sequence backbones process long sequences in segments, which saves memory and does not change predictions."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from iclbench.backbones import pair_sequence
from iclbench.backbones.base import TaskShape
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.core.episodes import Points
from iclbench.registry import BACKBONES
from tests.backbones import random_points
from tests.refusals import refused

SIZES = {
    "gpt2": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2},
    "gpt2-learned": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2, "positions": "learned"},
    "gpt2-sinusoidal": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2, "positions": "sinusoidal"},
    "mamba": {"layers": 2, "width": 8, "state": 4},
    "s4": {"layers": 2, "width": 8, "state": 8},
    "s4d": {"layers": 2, "width": 8, "state": 8},
}
N = 23


def model(name: str, points: int = N) -> SequenceBackbone:
    torch.manual_seed(0)
    cls = BACKBONES.get(name.removesuffix("-learned").removesuffix("-sinusoidal"))
    return cls(cls.Settings(**SIZES[name]), TaskShape(x_dim=3, points=points)).eval()


draw = partial(random_points.points, count=N, dim=3)


def with_gaps(points: Points) -> Points:
    generator = torch.Generator().manual_seed(2)
    return replace(points, mask=torch.rand(points.mask.shape, generator=generator) < 0.7)


@pytest.fixture(params=list(SIZES))
def backbone(request: pytest.FixtureRequest) -> SequenceBackbone:
    return model(request.param)


PREFIXES = [0, 4, 5, 6, 22]
# Every pair of parameter values is always tested. `make test-slow` tests the full product.
PAIRWISE = [
    (1, None, True),
    (1, PREFIXES, False),
    (5, None, False),
    (5, PREFIXES, True),
    (22, None, True),
    (22, PREFIXES, False),
]
# Each of these models differs from another one only in its positions or its state-space system, so few cases suffice.
DERIVED, DERIVED_CASES = ("gpt2-sinusoidal", "s4d"), [(5, None, False), (5, PREFIXES, True)]
PRODUCT = [
    (segment, prefixes, forked) for segment in (1, 5, 22) for prefixes in (None, PREFIXES) for forked in (False, True)
]


@pytest.mark.parametrize(
    ("name", "segment", "prefixes", "forked"),
    [
        pytest.param(
            name, *case, marks=[] if case in (DERIVED_CASES if name in DERIVED else PAIRWISE) else pytest.mark.slow
        )
        for name in SIZES
        for case in PRODUCT
    ],
)
def test_predictions_in_segments_equal_those_of_one_pass(
    name: str, segment: int, prefixes: list[int] | None, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = model(name)
    with torch.no_grad():
        for points in (draw(), with_gaps(draw())):
            options = {"prefixes": prefixes, "x_query": points.x.flip(1) if forked else None}
            expected = backbone.predict_next(points, **options).mean
            with monkeypatch.context() as patched:
                patched.setattr(pair_sequence, "SEGMENT_SIZE", segment)
                segmented = backbone.predict_next(points, **options).mean
            valid = points.mask if prefixes is None else points.mask[:, prefixes]
            torch.testing.assert_close(segmented[valid], expected[valid], atol=1e-5, rtol=1e-5)


def test_predictions_after_a_context_in_segments_equal_those_of_one_pass(
    backbone: SequenceBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = draw(count=4).x
    with torch.no_grad():
        for context in (draw(count=N - 1), with_gaps(draw(count=N - 1))):
            expected = backbone.predict_targets(context, x).mean
            with monkeypatch.context() as patched:
                patched.setattr(pair_sequence, "SEGMENT_SIZE", 5)
                torch.testing.assert_close(backbone.predict_targets(context, x).mean, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True])
def test_gradients_in_segments_equal_those_of_one_pass(
    backbone: SequenceBackbone, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, gradients = draw(), []
    for segment in (N, 5):
        monkeypatch.setattr(pair_sequence, "SEGMENT_SIZE", segment)
        backbone.zero_grad()
        backbone.predict_next(points, x_query=points.x.flip(1) if forked else None).loss(points.y).mean().backward()
        gradients.append([p.grad.clone() for p in backbone.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("x_query", [None, draw(count=N + 1).x])
def test_sequences_longer_than_the_learned_positions_are_refused_even_if_each_segment_fits(
    x_query: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_sequence, "SEGMENT_SIZE", 5)
    with refused("not-applicable", f"{2 * N} tokens", 2 * N + 2):
        model("gpt2-learned").predict_next(draw(count=N + 1), x_query=x_query)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is computed inside the `with` block."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, Tensor):
                self.elements = max(self.elements, t.untyped_storage().nbytes() // t.element_size())
        return out


def largest_tensor(name: str, count: int, forked: bool) -> int:
    backbone, points = model(name), draw(1, count=count)
    with torch.no_grad(), LargestTensor() as largest:
        backbone.predict_next(points, x_query=points.x.flip(1) if forked else None)
    return largest.elements


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba", "s4", "s4d"])
@pytest.mark.parametrize("forked", [False, True])
def test_no_tensor_of_a_recurrent_model_grows_with_the_sequence(
    name: str, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_sequence, "SEGMENT_SIZE", 16)
    assert largest_tensor(name, 320, forked) == largest_tensor(name, 80, forked)


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True])
def test_attention_memory_is_linear_in_the_sequence(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_sequence, "SEGMENT_SIZE", 16)
    short, long = (largest_tensor("gpt2", n, forked) for n in (160, 640))
    # The largest tensor is the mask of the 32 tokens of a segment. With queries, it holds the scores of 2 heads and 16
    # queries, which also attend to themselves.
    assert long == (2 * 16 * (2 * 640 + 1) if forked else 32 * (2 * 640))
    assert long <= 4 * short


def test_sequences_of_common_lengths_are_processed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = model("gpt2")
    monkeypatch.setattr(type(backbone), "advance", None)
    monkeypatch.setattr(type(backbone), "start", None)
    backbone.predict_next(draw())
    backbone.predict_next(draw(), x_query=draw().x)
    assert pair_sequence.SEGMENT_SIZE >= 160
