"""What `iclbench tune` found, as far as it can be compared: scores against learning rates, and who is ahead where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean

import pandas as pd
from scipy.stats import kendalltau

from iclbench.core.metrics import Metric, metric

# All that a trial was trained with besides its rate.
_SETTINGS = ["optimiser", "warmup", "weight_decay", "beta_1", "beta_2", "steps", "budget", "prompt_set", "metric"]
# A rate is in the window where the mean score is this near to the best, as a share of the range of all means.
NEAR = 0.1


@dataclass(frozen=True)
class RateCurves:
    """Trials that differ in nothing but contestant, learning rate and seed.

    Attributes:
        rows: columns contestant, lr, value (mean over seeds; missing: one of them diverged), spread (standard
            deviation), lowest, highest, seeds.
        metric: what was measured.
        steps: of every training.
    """

    rows: pd.DataFrame
    metric: Metric
    steps: int

    @cached_property
    def by_contestant(self) -> dict[str, dict[float, float | None]]:
        """Mean scores by rate; None where a training diverged."""
        found: dict[str, dict[float, float | None]] = {}
        for who, lr, value in self.rows[["contestant", "lr", "value"]].itertuples(index=False):
            found.setdefault(str(who), {})[float(lr)] = None if pd.isna(value) else float(value)
        return found

    @cached_property
    def rates(self) -> list[float]:
        """All that were tried with anybody."""
        return sorted({lr for own in self.by_contestant.values() for lr in own})

    @cached_property
    def common(self) -> list[float]:
        """Those that were tried with everybody."""
        return [lr for lr in self.rates if all(lr in own for own in self.by_contestant.values())]

    def best(self, who: str, among: Iterable[float] | None = None) -> float | None:
        """The rate, of some or all that were tried, with the best mean; None: all diverged."""
        own = self.by_contestant[who]
        known = [lr for lr in (own if among is None else among) if own.get(lr) is not None]
        return min(known, key=lambda lr: self._sign * own[lr], default=None)  # type: ignore[operator]

    def window(self, who: str) -> list[float]:
        """The rates around the best one, without a gap, at which its mean is nearly as good."""
        own, best = self.by_contestant[who], self.best(who)
        if best is None:
            return []
        tried = sorted(own)
        near = [(value := own[lr]) is not None and abs(value - own[best]) <= NEAR * self._range for lr in tried]  # type: ignore[operator]
        first = last = tried.index(best)
        while first and near[first - 1]:
            first -= 1
        while last + 1 < len(tried) and near[last + 1]:
            last += 1
        return tried[first : last + 1]

    def expected(self, who: str, k: int) -> float | None:
        """What the best of k common rates has on average, over all choices of them (Dodge et al. 2019, of rates in the
        place of random trials); None: all rates of a choice diverged."""
        own = self.by_contestant[who]
        choices = [[own[lr] for lr in chosen if own[lr] is not None] for chosen in combinations(self.common, k)]
        if not choices or not all(choices):
            return None
        return fmean(self._sign * min(self._sign * value for value in values) for values in choices)  # type: ignore[operator]

    def ranks(self, lr: float | None) -> dict[str, int | None]:
        """Places at one rate for all or (None) at the best rate of each, 1 the best; equal scores share theirs, and who
        diverged has none."""
        scores = {who: own.get(self.best(who) if lr is None else lr) for who, own in self.by_contestant.items()}  # type: ignore[arg-type]
        order = sorted(self._sign * value for value in scores.values() if value is not None)
        return {who: None if value is None else 1 + order.index(self._sign * value) for who, value in scores.items()}

    def agreement(self, lr: float) -> float | None:
        """Kendall's tau of the scores at one rate for all with those at everybody's best; who diverged is last. None:
        there is nothing to compare."""
        own, best = self.ranks(lr), self.ranks(None)
        if len(own) < 2:
            return None
        last = len(own) + 1
        tau = kendalltau([own[who] or last for who in own], [best[who] or last for who in own]).statistic
        return None if pd.isna(tau) else float(tau)

    def over_seeds(self, who: str, lr: float) -> tuple[float, float]:
        """The lowest and the highest score of a seed."""
        row = self.rows[self.rows["contestant"].eq(who) & self.rows["lr"].eq(lr)].iloc[0]
        return float(row["lowest"]), float(row["highest"])

    def among(self, names: Iterable[str]) -> RateCurves:
        """The same of some contestants."""
        return replace(self, rows=self.rows[self.rows["contestant"].isin(list(names))])

    @property
    def _sign(self) -> int:
        return 1 if self.metric.lower_is_better else -1

    @cached_property
    def _range(self) -> float:
        known = self.rows["value"].dropna().astype(float)
        return float(known.max() - known.min()) if len(known) else 0.0


def rate_curves(trials: pd.DataFrame) -> RateCurves | None:
    """What can be compared of trials of one task at one preset: of those with other steps, episodes or settings
    besides the rate, the kind with most contestants. None: no two rates of anybody."""
    settings = trials[_SETTINGS].astype("string").fillna("").agg("|".join, axis=1)
    if settings.empty:
        return None
    most = str(trials.groupby(settings)["contestant"].nunique().sort_index().idxmax())
    trials = trials[settings.eq(most)]
    values = trials["value"].astype(float).where(trials["status"].eq("ok"))
    grouped = trials.assign(value=values).groupby(["contestant", "lr"], sort=True)["value"]
    rows = grouped.agg(spread="std", lowest="min", highest="max", seeds="size").reset_index()
    rows["value"] = grouped.agg(lambda own: own.mean(skipna=False)).to_numpy()
    several = rows.groupby("contestant")["lr"].transform("size") > 1
    if not several.any():
        return None
    return RateCurves(
        rows[several].reset_index(drop=True), metric(str(trials["metric"].iloc[0])), int(trials["steps"].iloc[0])
    )
