"""Base class of estimators for event sequences, which are fitted to the events of a prefix and predict the next event.

The base class handles masks, prefixes and censored points. A subclass implements one function, `answer`, which reads
only gaps and marks. Priors are in units of the mean gap of the training data, so answers do not depend on the unit of
time. Without training data, the setting `unit` replaces the mean gap.

A fit uses a prefix up to its last event, so it never includes the open interval after the last event of a sequence. The
mean gaps of the training data, and the fit of a complete sequence with `hawkes_mle.fit`, do include it.
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
from iclbench.estimators.base import FittedPredictor, move_valid_first, slices


class EventSettings(BaseSettings):
    """Settings of the priors, which all methods share.

    Attributes:
        smoothing: total pseudo-count of the mark frequencies, divided equally among the marks. With three marks, 3
            is Laplace's rule of succession.
        unit: expected gap if the mean gap of the training data (`TaskFacts.mean_gap`) is not available.
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
        """Fit each episode P times, on its first `lengths[:, p]` events (0 to N), and predict the next event, `(B, P)`.

        Arrays are padded after the last event of an episode, with gaps of 1 and marks of 0.
        """

    @property
    def prior_gaps(self) -> tuple[float, float]:
        """The prior expectations of the first gap and of later gaps."""
        first_gap, later_gap = self.facts.mean_first_gap, self.facts.mean_gap
        return (self.settings.unit if first_gap is None else first_gap), (
            self.settings.unit if later_gap is None else later_gap
        )

    @property
    def mark_count(self) -> int:
        """The number of marks K.

        Raises:
            UsageError: the task does not consist of events.
        """
        if self.facts.marks is None:
            raise UsageError(
                f"{type(self).__name__} predicts events; this task requires numbers or class labels",
                code="not-applicable",
            )
        return self.facts.marks

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> EventPrediction:
        mark_count, y = self.mark_count, points.y
        if y.shape[2:] != (3,):
            raise UsageError(
                f"{type(self).__name__} reads events (gap, mark, time), not y of shape {tuple(y.shape)}",
                code="not-applicable",
            )
        points = points if is_unmasked else move_valid_first(points)
        # Only the last point can be censored. It may be a query, but fits never include it.
        is_event = points.mask & (points.y[..., MARK] >= 0)
        lengths = torch.minimum(lengths.expand(len(points), -1), is_event.sum(1, keepdim=True))
        gaps = points.y[..., GAP].to(self.dtype).masked_fill(~is_event, 1)
        marks = marks_of(points.y).masked_fill(~is_event, 0)
        if not bool(((gaps > 0) & gaps.isfinite()).all()):
            raise DataError("gaps between events must be positive and finite; the times of a sequence must increase")
        if bool((marks >= mark_count).any()):
            raise DataError(f"an event has the mark {int(marks.max())}; this task has marks 0 to {mark_count - 1}")
        chunks = slices(max(1, len(points)), self.episodes_at_once)
        answers = cat([self.answer(gaps[chunk], marks[chunk], lengths[chunk]) for chunk in chunks])
        targets = queries.shape[2]
        return answers.map(lambda t: t.to(y.dtype).unsqueeze(2).expand(*t.shape[:2], targets, *t.shape[2:]))


def mark_frequencies(
    is_counted: Bool[Tensor, "B P N"], marks: Int[Tensor, "B N"], mark_count: int, smoothing: float
) -> Float[Tensor, "B P K"]:
    """Return smoothed frequencies of the marks among the counted events.

    `smoothing` is a number of additional events that are spread evenly over the marks.
    """
    weights = is_counted.to(torch.float64)
    counts = weights @ F.one_hot(marks, mark_count).to(weights.dtype)
    return (counts + smoothing / mark_count) / (weights.sum(-1, keepdim=True) + smoothing)


def prefix_mask(lengths: Int[Tensor, "B P"], points: int) -> Bool[Tensor, "B P N"]:
    """Return a mask of the events in each prefix."""
    return torch.arange(points, device=lengths.device) < lengths.unsqueeze(-1)


def prefix_sums(values: Float[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> Float[Tensor, "B P"]:
    """Return the sum of the first `lengths` values."""
    return F.pad(values.cumsum(1), (1, 0)).gather(1, lengths)
