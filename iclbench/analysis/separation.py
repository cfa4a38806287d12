"""Whether a row of scores tells its contestants apart, or the luck of their seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

# The gap between quartiles must be so many standard deviations over seeds.
ENOUGH = 2.0
_QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Separation:
    """How far contestants are apart, the best and the worst left out, and how far the seeds of one are.

    Attributes:
        contestants: how many have a score.
        gap: median of the four gaps between adjacent quartiles of the contestants' means.
        sd: standard deviation over seeds, pooled over contestants; NaN where nobody has two.
    """

    contestants: int
    gap: float
    sd: float

    @property
    def ratio(self) -> float:
        """The gap in standard deviations; 0 where there is neither, as where all scores are alike."""
        if not self.gap:
            return 0.0
        return self.gap / self.sd if self.sd else math.inf

    @property
    def tells(self) -> bool:
        """Whether the row tells contestants apart; not where nothing is known of seeds."""
        return self.ratio > ENOUGH


def separation(scores: pd.Series) -> Separation | None:
    """Of the scores of single runs, indexed by contestant and run; None for fewer than five contestants."""
    by_name = scores.astype(float).groupby(level=0)
    means = by_name.mean().sort_values()
    if len(means) < 5:
        return None
    kept = means.index[1:-1]
    runs, spread = by_name.count()[kept], by_name.var()[kept]
    free = (runs - 1).clip(lower=0)
    sd = math.sqrt((spread.fillna(0.0) * free).sum() / free.sum()) if free.sum() else math.nan
    gaps = np.diff(np.quantile(means[kept].to_numpy(), _QUARTILES))
    return Separation(len(means), float(np.median(gaps)), sd)
