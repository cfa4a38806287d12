"""What an estimator of events is: fitted to the events so far of one sequence, it answers when the next one comes, and
with what mark.

Masks, prefixes and censored points are dealt with here, so that a method writes one function, `answer`. Only gaps and
marks are read: absolute times are their sums. A method's prior counts in the mean gaps of the training data, so that in
another unit of time all answers are the same; where there are no such data it counts in `unit`, until it has seen as
many gaps as its docstring says.

A fit ends at the last event of a prefix. An open interval comes after all prefixes: no fit of a prefix can use it. It
counts in the mean gaps of the training data, and in the fit of a whole sequence (`hawkes_mle.fit`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.events import GAP, MARK, EventPrediction, marks_of
from iclbench.core.records import cat
from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.estimators.base import FittedPredictor, leading, slices


class EventSettings(BaseSettings):
    """The prior of every method.

    `smoothing`: so many further events are counted, spread evenly over the marks, where frequencies of marks are taken;
    3 of them with three marks are Laplace's rule of succession. `unit`: the gap that is expected beforehand, where no
    training data say it (`TaskFacts.mean_gap`).
    """

    smoothing: PositiveFloat = 3.0
    unit: PositiveFloat = 1.0


_Settings = TypeVar("_Settings", bound=EventSettings)


class EventEstimator(FittedPredictor[_Settings], abstract=True):
    """A method that predicts events."""

    heads = ("event",)
    episodes_at_once = 16

    @abstractmethod
    def answer(
        self, gaps: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]
    ) -> EventPrediction:
        """Fit P times per episode, on its first `lengths[:, p]` events (0 to N), and answer `(B, P)` what comes next.

        Gaps and marks beyond an episode's last event are 1 and 0.
        """

    @property
    def expected(self) -> tuple[float, float]:
        """The first gap and any later gap that are expected beforehand."""
        first, later = self.facts.mean_first_gap, self.facts.mean_gap
        return (self.settings.unit if first is None else first), (self.settings.unit if later is None else later)

    @property
    def kinds(self) -> int:
        """The number of marks K; raises `UsageError` where the task asks for something else than events."""
        if self.facts.marks is None:
            raise UsageError(f"{type(self).__name__} predicts events; this task asks for numbers or class labels")
        return self.facts.marks

    def _ask(
        self, points: Points, full: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> EventPrediction:
        kinds, y = self.kinds, points.y
        if y.shape[2:] != (3,):
            raise UsageError(f"{type(self).__name__} reads events (gap, mark, time), not y of shape {tuple(y.shape)}")
        points = points if full else leading(points)
        # A censored point is the last one; asked it may be, but nothing is learned from it.
        is_event = points.mask & (points.y[..., MARK] >= 0)
        lengths = torch.minimum(lengths.expand(len(points), -1), is_event.sum(1, keepdim=True))
        gaps = points.y[..., GAP].to(self.dtype).masked_fill(~is_event, 1)
        marks = marks_of(points.y).masked_fill(~is_event, 0)
        if not bool(((gaps > 0) & gaps.isfinite()).all()):
            raise DataError("gaps between events must be positive numbers: times of a sequence must increase")
        if bool((marks >= kinds).any()):
            raise DataError(f"an event has the mark {int(marks.max())}; this task has marks 0 to {kinds - 1}")
        chunks = slices(max(1, len(points)), self.episodes_at_once)
        answers = cat([self.answer(gaps[chunk], marks[chunk], lengths[chunk]) for chunk in chunks])
        targets = queries.shape[2]
        return answers.map(lambda t: t.to(y.dtype).unsqueeze(2).expand(*t.shape[:2], targets, *t.shape[2:]))


def frequencies(
    counted: Bool[Tensor, "B P N"], marks: Int[Tensor, "B N"], kinds: int, smoothing: float
) -> Float[Tensor, "B P K"]:
    """Probabilities of the marks: their share of the events that are counted and of `smoothing` further ones, which are
    spread evenly over the marks."""
    weights = counted.to(torch.float64)
    counts = weights @ F.one_hot(marks, kinds).to(weights.dtype)
    return (counts + smoothing / kinds) / (weights.sum(-1, keepdim=True) + smoothing)


def in_prefix(lengths: Int[Tensor, "B P"], points: int) -> Bool[Tensor, "B P N"]:
    """Which of N events belong to each prefix."""
    return torch.arange(points, device=lengths.device) < lengths.unsqueeze(-1)


def sums(values: Float[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> Float[Tensor, "B P"]:
    """The sum of the first `lengths` values."""
    return F.pad(values.cumsum(1), (1, 0)).gather(1, lengths)
