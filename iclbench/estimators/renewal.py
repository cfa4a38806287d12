"""Renewal processes with independent log-normal gaps."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.events import LogNormalEvent
from iclbench.estimators.event_estimator import (
    EventEstimator,
    EventSettings,
    mark_frequencies,
    prefix_mask,
    prefix_sums,
)


class Renewal(EventEstimator[EventSettings]):
    """A log-normal distribution fitted to the gaps so far, and smoothed frequencies of the marks.

    With the mean m of n log-gaps and the sum S of their squared distances from m, the logarithm of the next gap is
    N(m, (1 + 1/n) (S + 3) / (n + 1)) (conjugate prior, Gelman et al. 2013, section 3.3). The factor (S + 3) / (n + 1)
    is the posterior mean of the variance under an inverse-gamma prior with shape 2 and mean 1.5 and a flat prior on m.
    The factor 1 + 1/n accounts for the uncertainty of m. The standard deviation is at least sqrt(3 / n), so the density
    is finite even if all gaps are equal. Before the first event, the prediction is the same as after a single gap of
    the expected length.
    """

    Settings = EventSettings

    def answer(
        self, gaps: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]
    ) -> LogNormalEvent:
        log_gaps = gaps.log()
        # The first log-gap is subtracted, because squares of large logarithms would lose half of the digits.
        origin = log_gaps[:, :1].sum(1, keepdim=True)
        n = lengths.clamp_min(1)
        mean = prefix_sums(log_gaps - origin, lengths) / n
        squares = (prefix_sums((log_gaps - origin).square(), lengths) - n * mean.square()).clamp_min(0)
        scales = ((1 + 1 / n) * (squares + 3) / (n + 1)).sqrt()
        locations = torch.where(lengths == 0, math.log(self.prior_gaps[0]), origin + mean).unsqueeze(-1)
        is_counted = prefix_mask(lengths, marks.shape[1])
        probabilities = mark_frequencies(is_counted, marks, self.mark_count, self.settings.smoothing)
        return LogNormalEvent(torch.zeros_like(locations), locations, scales.unsqueeze(-1), probabilities.log())
