"""Comparison of the spread over contestants with the spread over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from iclbench.analysis.pairs import welch_p

# Scores separate contestants if the median gap between quartiles exceeds this number of standard deviations over seeds.
MIN_RATIO = 2.0
_QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Significance level of the tests of pairs.
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Separation:
    """The spread over contestants, without the best and the worst one, and the spread over seeds.

    Attributes:
        contestants: number of contestants with a score.
        gap: median of the four gaps between adjacent quartiles of the contestants' means.
        sd: standard deviation over seeds, pooled over contestants; NaN if no contestant has two seeds.
        pairs: number of pairs of contestants with at least two seeds each, including the best and the worst contestant.
        significant_pairs: number of these pairs whose mean scores differ significantly in Welch's test at
            `SIGNIFICANCE_LEVEL`, without correction for multiple tests. If all contestants were equal, the expected
            share of significant pairs would be this level.
    """

    contestants: int
    gap: float
    sd: float
    pairs: int
    significant_pairs: int

    @property
    def ratio(self) -> float:
        """The gap in standard deviations; 0 if the gap is 0."""
        if not self.gap:
            return 0.0
        return self.gap / self.sd if self.sd else math.inf

    @property
    def is_clear(self) -> bool:
        """Whether the scores separate contestants; False if the spread over seeds is unknown."""
        return self.ratio > MIN_RATIO


def separation(scores: pd.Series) -> Separation | None:
    """Compare the spread over contestants with the spread over seeds.

    Args:
        scores: a score per run, indexed by contestant and run.

    Returns:
        The separation; None if there are fewer than five contestants.
    """
    by_contestant = scores.astype(float).groupby(level=0)
    means = by_contestant.mean().sort_values()
    if len(means) < 5:
        return None
    middle = means.index[1:-1]
    runs, variances = by_contestant.count()[middle], by_contestant.var()[middle]
    degrees_of_freedom = runs - 1
    total = degrees_of_freedom.sum()
    sd = math.sqrt((variances * degrees_of_freedom).sum() / total) if total else math.nan
    gaps = np.diff(np.quantile(means[middle].to_numpy(), _QUARTILES))
    p = _welch(by_contestant)
    return Separation(len(means), float(np.median(gaps)), sd, len(p), int((p < SIGNIFICANCE_LEVEL).sum()))


def _welch(by_contestant: Any) -> Float[np.ndarray, " pairs"]:
    """The p-value of Welch's test of every pair of contestants with at least two seeds each; NaN for equal contestants
    without any spread."""
    statistics = by_contestant.agg(["mean", "var", "count"]).query("count > 1")
    mean, variance, count = (statistics[name].to_numpy(float) for name in ("mean", "var", "count"))
    first, second = np.triu_indices(len(mean), 1)
    sd = np.sqrt(variance)
    return welch_p((mean[first], mean[second]), (sd[first], sd[second]), (count[first], count[second]))
