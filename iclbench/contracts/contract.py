"""The list of contracts, and functions that the checks share: they create example episodes, query predictors and
compare answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import shorten
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.guard import guarded
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Predictor, State
from iclbench.core.records import TensorRecord


@dataclass(frozen=True)
class Tolerance:
    """The largest allowed difference between answers that should be equal: `absolute + relative * |expected|`."""

    absolute: float = 1e-5
    relative: float = 1e-4


DEFAULT = Tolerance()


@dataclass(frozen=True)
class Contract:
    """One property of predictors.

    Attributes:
        name: name of the property.
        check: function that raises `AssertionError` if a predictor does not have the property.
        applies: function that returns whether a predictor must have the property.
        needs_related: whether the check needs related datasets.
    """

    name: str
    check: Callable[[Predictor, Episodes, Tolerance], None]
    applies: Callable[[Predictor], bool]
    needs_related: bool = False

    def is_checkable(self, predictor: Predictor, episodes: Episodes) -> bool:
        """Return whether the contract applies to the predictor and can be checked on these episodes."""
        return self.applies(predictor) and (episodes.related is not None or not self.needs_related)


CONTRACTS: list[Contract] = []


def contract(
    applies: Callable[[Predictor], bool] = lambda _: True, needs_related: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a check to add it to `CONTRACTS`."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        CONTRACTS.append(Contract(check.__name__, guarded(check), applies, needs_related))
        return check

    return register


def failures(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> dict[str, str]:
    """Return the names of the contracts that `predictor` breaks on these episodes, each with an error message."""
    broken_contracts = {}
    for contract in CONTRACTS:
        if contract.is_checkable(predictor, episodes):
            try:
                contract.check(predictor, episodes, tolerance)
            except Exception as error:
                broken_contracts[contract.name] = shorten(str(error)) or type(error).__name__
    return broken_contracts


@guarded
def example_episodes(
    dim: int = 4,
    points: int = 9,
    targets: int = 3,
    outputs: int = 1,
    classes: int | None = None,
    related: int = 0,
    seed: int = 0,
    marks: int | None = None,
) -> Episodes:
    """Return three random episodes for the checks.

    They are samples of noisy linear functions, random labels (`classes`), or events at random times (`marks`). With
    `dim=0`, they are streams of random vectors or tokens.

    Args:
        dim: input dimension Dx.
        points: number of points N of the context.
        targets: number of targets Q.
        outputs: output dimension Dy of linear functions.
        classes: number of classes; None for numbers.
        related: number of related datasets of the first episode, which are samples of the same function as the context.
            Each later episode has one dataset fewer than the episode before it. The datasets differ in size.
        seed: seed of the episodes.
        marks: number of marks of events; None for other episodes.
    """
    generator = torch.Generator().manual_seed(seed)
    if marks is not None:
        gaps = 0.1 + 2 * torch.rand(3, points + targets, generator=generator)
        y = torch.stack([gaps, torch.randint(marks, gaps.shape, generator=generator).to(gaps), gaps.cumsum(1)], -1)
        return _split(Points.full(y[..., :0], y), points)
    x = torch.randn(3, points + targets, dim, generator=generator)
    weights = torch.randn(3, dim, outputs, generator=generator)

    def observe(x: Tensor) -> Points:
        if classes is not None:
            return Points.full(x, torch.randint(classes, x.shape[:-1], generator=generator))
        y = torch.einsum("b...x,bxy->b...y", x, weights)
        return Points.full(x, y + 0.5 * torch.randn(y.shape, generator=generator))

    all_points, related_sets = observe(x), None
    if related:
        set_index, point_index = torch.arange(related), torch.arange(points)
        is_present = set_index < related - torch.arange(3).unsqueeze(1)
        is_within_size = point_index < points - (set_index % 3).unsqueeze(1)
        unmasked_sets = observe(torch.randn(3, related, points, dim, generator=generator))
        related_sets = replace(unmasked_sets, mask=is_present.unsqueeze(-1) & is_within_size)
    return replace(_split(all_points, points), related=related_sets, classes=classes)


def _split(all_points: Points, points: int) -> Episodes:
    """Split points into a context (the first `points` points) and targets (the others)."""
    targets = all_points.span(points)
    return Episodes(context=all_points.span(0, points), targets=targets, scored=targets.mask)


def ask_next(predictor: Predictor, episodes: Episodes, points: Points) -> Prediction:
    """Return the marginal predictions at every position. Joint distributions are not compared, because targets that are
    predicted one at a time do not have a joint distribution."""
    with torch.no_grad():
        return _marginals("predict_next", predictor.predict_next(points, episodes.related))


def ask_targets(predictor: Predictor, episodes: Episodes, context: Points, x: Tensor) -> Prediction:
    """Return the marginal predictions at the inputs `x`, `(B, Q, Dx)`, given a context."""
    with torch.no_grad():
        return _marginals("predict_targets", predictor.predict_targets(context, x, episodes.related))


def ask_state(predictor: Predictor, state: State, x: Tensor) -> Prediction:
    """Return the marginal predictions at the inputs `x`, `(B, Q, Dx)`, given a state."""
    with torch.no_grad():
        return _marginals("query", predictor.query(state, x))


def _marginals(method: str, answer: Any) -> Prediction:
    assert isinstance(answer, Prediction), f"{method} returns a {type(answer).__name__}, not a Prediction"
    return answer.marginals


def targets_of(episodes: Episodes) -> Points:
    """Return the targets of episodes; raise `AssertionError` if they have none."""
    assert episodes.targets is not None, "the checks require episodes with targets"
    return episodes.targets


def different_outputs(y: Tensor, episodes: Episodes) -> Tensor:
    """Return outputs that differ from `y` everywhere: different numbers or labels, or later events with different
    marks."""
    if episodes.classes is not None:
        return (y + 1) % episodes.classes
    if episodes.context.x.shape[-1] or y.shape[-1] != len((GAP, MARK, TIME)):
        return 3 - 2 * y
    later_events = 2 * y + 0.5
    later_events[..., MARK] = torch.where(y[..., MARK] > 0, y[..., MARK] - 1, 1)
    return later_events


def insert_points(tensor: Tensor, positions: Tensor, values: Tensor) -> Tensor:
    """Return a copy of `tensor` with `values` at the given positions of axis 1."""
    index = positions.reshape(*positions.shape, *[1] * (tensor.dim() - 2)).expand(values.shape)
    return tensor.scatter(1, index, values)


def assert_close(answer: TensorRecord, expected: TensorRecord, tolerance: Tolerance, message: str) -> None:
    """Raise `AssertionError`, with `message` and the largest difference, if the shapes of two answers differ or their
    values differ by more than the tolerance."""
    pairs = zip(answer.tensors().items(), expected.tensors().values(), strict=True)
    for (name, a), b in pairs:
        assert a.shape == b.shape, f"{message}: '{name}' has shape {tuple(a.shape)}, expected {tuple(b.shape)}"
        differences = (a - b).abs()
        largest = differences.max().item() if differences.numel() else 0.0
        is_close = bool((differences <= tolerance.absolute + tolerance.relative * b.abs()).all())
        assert is_close, f"{message}: '{name}' is off by {largest:.3g}"
