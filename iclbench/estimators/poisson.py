"""Homogeneous Poisson processes; marks are predicted from their frequencies or from the last mark."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.events import HazardEvent
from iclbench.estimators.event_estimator import (
    EventEstimator,
    EventSettings,
    mark_frequencies,
    prefix_mask,
    prefix_sums,
)

# Largest ratio between the prior gap and the mean gap of two or more events, in either direction.
_MAX_FACTOR = 5


class Poisson(EventEstimator[EventSettings]):
    """A Poisson process with the rate of the events so far (`poisson_rates`) and smoothed frequencies of the marks."""

    Settings = EventSettings

    def answer(self, gaps: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> HazardEvent:
        rate = poisson_rates(gaps, lengths, *self.prior_gaps)
        base = rate.unsqueeze(-1) * self.mark_probabilities(marks, lengths)
        return HazardEvent(base, torch.zeros_like(base), torch.zeros_like(rate))

    def mark_probabilities(self, marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        return mark_frequencies(prefix_mask(lengths, marks.shape[1]), marks, self.mark_count, self.settings.smoothing)


class MarkovMarks(Poisson):
    """A Poisson process whose marks are predicted from the frequencies of transitions from the last mark.

    These frequencies are smoothed as in `Poisson`. If no event has followed the last mark so far, all marks are equally
    likely. The rate is as in `Poisson`.
    """

    order = "causal"

    def mark_probabilities(self, marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        is_counted = prefix_mask(lengths, marks.shape[1])
        if marks.shape[1] > 0:
            last_mark = marks.gather(1, (lengths - 1).clamp_min(0))
            is_counted[..., 1:] &= marks[:, None, :-1] == last_mark.unsqueeze(-1)
            is_counted[..., 0] = False
        return mark_frequencies(is_counted, marks, self.mark_count, self.settings.smoothing)


def poisson_rates(
    gaps: Float[Tensor, "B N"], lengths: Int[Tensor, "B P"], first_gap: float, mean_gap: float
) -> Float[Tensor, "B P"]:
    """Estimate the rates of Poisson processes from their first n events.

    With the last event at time t, the rate is 1 / `first_gap` for n = 0 and (n + 1) / (t + u) for n > 0. This is the
    posterior mean under a Gamma prior with shape 1, which corresponds to one more event after a gap of u = `mean_gap`.
    For n > 1, u is clipped to the range from a fifth to five times the mean t / n of the observed gaps, so that the
    rate follows the data even if `mean_gap` is in the wrong unit of time. For n = 1, u is not clipped, because all
    rates of the form c / t have an infinite expected loss.

    Args:
        gaps: times between events.
        lengths: numbers of events n.
        first_gap: expected time of the first event.
        mean_gap: expected gap between events.
    """
    elapsed = prefix_sums(gaps, lengths)
    mean = elapsed / lengths.clamp_min(1)
    bounded_gap = torch.full_like(mean, mean_gap).clamp(mean / _MAX_FACTOR, mean * _MAX_FACTOR)
    prior_gap = torch.where(lengths < 2, mean_gap, bounded_gap)
    return (lengths + 1) / (elapsed + torch.where(lengths == 0, first_gap, prior_gap))
