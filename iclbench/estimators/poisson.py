"""Homogeneous Poisson processes: events at a constant rate, marks as frequent as so far or as the last one tells."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.events import HazardEvent
from iclbench.estimators.event_estimator import EventEstimator, EventSettings, frequencies, in_prefix, sums

# A unit that is further than this factor from the mean gap is some other unit of time.
_FAR = 5


class Poisson(EventEstimator[EventSettings]):
    """The rate of the episode so far (`rates`), and smoothed frequencies of the marks."""

    Settings = EventSettings

    def answer(self, gaps: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> HazardEvent:
        rate = rates(gaps, lengths, *self.expected)
        base = rate.unsqueeze(-1) * self.mark_probabilities(marks, lengths)
        return HazardEvent(base, torch.zeros_like(base), torch.zeros_like(rate))

    def mark_probabilities(self, marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        return frequencies(in_prefix(lengths, marks.shape[1]), marks, self.kinds, self.settings.smoothing)


class MarkovMarks(Poisson):
    """The time as `Poisson`, the mark by what followed the earlier events with the mark of the last one.

    The transitions from every mark are smoothed as the frequencies of `Poisson` are; where nothing has followed the
    last mark so far, all marks are equally likely.
    """

    order = "causal"

    def mark_probabilities(self, marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        is_counted = in_prefix(lengths, marks.shape[1])
        if marks.shape[1] > 0:
            last_mark = marks.gather(1, (lengths - 1).clamp_min(0))
            is_counted[..., 1:] &= marks[:, None, :-1] == last_mark.unsqueeze(-1)
            is_counted[..., 0] = False
        return frequencies(is_counted, marks, self.kinds, self.settings.smoothing)


def rates(gaps: Float[Tensor, "B N"], lengths: Int[Tensor, "B P"], first: float, unit: float) -> Float[Tensor, "B P"]:
    """Rates of Poisson processes from their first n events, the last of them at t: 1 / `first` without any event, then
    (n + 1) / (t + u).

    One event after a gap of u = `unit` is counted beforehand: the posterior mean under a Gamma prior of shape 1. From
    two events on u is at most five times their mean gap t / n and at least a fifth of it, so that the rate follows the
    unit of time wherever `unit` is far off. From one event it is `unit` whatever they say: any rate c / t after one
    event loses infinitely many nats in the mean.
    """
    elapsed = sums(gaps, lengths)
    mean = elapsed / lengths.clamp_min(1)
    bounded_unit = torch.full_like(mean, unit).clamp(mean / _FAR, mean * _FAR)
    prior_gap = torch.where(lengths < 2, unit, bounded_unit)
    return (lengths + 1) / (elapsed + torch.where(lengths == 0, first, prior_gap))
