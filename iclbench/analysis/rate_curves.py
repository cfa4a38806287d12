"""Comparable trials of `iclbench tune`: scores against learning rates, and the order of contestants at each rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean

import pandas as pd
from scipy.stats import kendalltau

from iclbench.core.metrics import Metric, metric

# The columns in which comparable trials must be equal.
_SETTINGS = ["optimiser", "warmup", "weight_decay", "beta_1", "beta_2", "steps", "budget", "prompt_set", "metric"]
# A learning rate is in the window if its mean score is at most this far from the best one, as a share of the range of
# all mean scores.
WINDOW_TOLERANCE = 0.1


@dataclass(frozen=True)
class RateCurves:
    """Trials that differ only in contestant, learning rate and seed.

    Attributes:
        rows: columns contestant, lr, value (mean over seeds; missing if a run diverged), spread (standard deviation),
            lowest, highest, seeds.
        metric: the metric of `value`.
        steps: number of steps of every training run.
    """

    rows: pd.DataFrame
    metric: Metric
    steps: int

    @cached_property
    def by_contestant(self) -> dict[str, dict[float, float | None]]:
        """The mean scores of each contestant by rate; None if a training run diverged."""
        scores: dict[str, dict[float, float | None]] = {}
        for contestant, lr, value in self.rows[["contestant", "lr", "value"]].itertuples(index=False):
            scores.setdefault(str(contestant), {})[float(lr)] = None if pd.isna(value) else float(value)
        return scores

    @cached_property
    def rates(self) -> list[float]:
        """All learning rates, ascending."""
        return sorted({lr for scores in self.by_contestant.values() for lr in scores})

    @cached_property
    def common_rates(self) -> list[float]:
        """The rates at which all contestants were trained, ascending."""
        return [lr for lr in self.rates if all(lr in scores for scores in self.by_contestant.values())]

    def best_rate(self, contestant: str, candidates: Iterable[float] | None = None) -> float | None:
        """The rate with the best mean score among the candidates (default: all rates); None if a training run diverged
        at each candidate."""
        scores = self.by_contestant[contestant]
        rates = [lr for lr in (scores if candidates is None else candidates) if scores.get(lr) is not None]
        return min(rates, key=lambda lr: self._sign * scores[lr], default=None)  # type: ignore[operator]

    def window(self, contestant: str) -> list[float]:
        """The contiguous rates around the best one whose mean scores are within `WINDOW_TOLERANCE` of the best mean
        score."""
        scores, best = self.by_contestant[contestant], self.best_rate(contestant)
        if best is None:
            return []
        rates, limit = sorted(scores), WINDOW_TOLERANCE * self._range
        is_near = [(value := scores[lr]) is not None and abs(value - scores[best]) <= limit for lr in rates]  # type: ignore[operator]
        first = last = rates.index(best)
        while first and is_near[first - 1]:
            first -= 1
        while last + 1 < len(rates) and is_near[last + 1]:
            last += 1
        return rates[first : last + 1]

    def expected_score(self, contestant: str, k: int) -> float | None:
        """The expected best score if only k of the common rates are tried: the mean over all choices of k different
        rates. None if a training run diverged at all rates of a choice, or if there are fewer than k common rates.

        In Dodge et al. (2019), the choices are random trials instead of rates, and are drawn with replacement.
        """
        scores = self.by_contestant[contestant]
        choices = [
            [scores[lr] for lr in rates if scores[lr] is not None] for rates in combinations(self.common_rates, k)
        ]
        if not choices or not all(choices):
            return None
        return fmean(self._sign * min(self._sign * value for value in values) for values in choices)  # type: ignore[operator]

    def ranks(self, lr: float | None) -> dict[str, int | None]:
        """The ranks of contestants at the rate `lr` or, if `lr` is None, at the best rate of each contestant.
        Contestants with equal scores share a rank. The rank of a contestant with a diverged run is None."""
        values = {}
        for name, scores in self.by_contestant.items():
            rate = self.best_rate(name) if lr is None else lr
            values[name] = None if rate is None else scores.get(rate)
        order = sorted(self._sign * value for value in values.values() if value is not None)
        return {name: None if value is None else 1 + order.index(self._sign * value) for name, value in values.items()}

    def rank_agreement(self, lr: float) -> float | None:
        """Kendall's tau between the ranks at the rate `lr` and the ranks at the best rate of each contestant.

        Contestants with a diverged run are last. None for fewer than two contestants, or if all ranks are equal.
        """
        ranks, best_ranks = self.ranks(lr), self.ranks(None)
        if len(ranks) < 2:
            return None
        last_rank = len(ranks)  # more than the rank of a contestant without a diverged run
        tau = kendalltau([ranks[n] or last_rank for n in ranks], [best_ranks[n] or last_rank for n in ranks]).statistic
        return None if pd.isna(tau) else float(tau)

    def of_contestants(self, names: Iterable[str]) -> RateCurves:
        """The trials of the named contestants."""
        return replace(self, rows=self.rows[self.rows["contestant"].isin(list(names))])

    @property
    def _sign(self) -> int:
        return 1 if self.metric.lower_is_better else -1

    @cached_property
    def _range(self) -> float:
        values = self.rows["value"].dropna()
        return float(values.max() - values.min()) if len(values) else 0.0


def rate_curves(trials: pd.DataFrame) -> RateCurves | None:
    """The comparable trials of one task at one preset. If the trials have several combinations of other settings, the
    combination with the most contestants is used. Contestants with only one learning rate are omitted. None if no
    contestant has two rates."""
    settings = trials[_SETTINGS].astype("string").fillna("").agg("|".join, axis=1)
    if settings.empty:
        return None
    main_settings = str(trials.groupby(settings)["contestant"].nunique().idxmax())
    trials = trials[settings.eq(main_settings)]
    values = trials["value"].astype(float).where(trials["status"].eq("ok"))
    groups = trials.assign(value=values).groupby(["contestant", "lr"], sort=True)["value"]
    rows = groups.agg(spread="std", lowest="min", highest="max", seeds="size").reset_index()
    rows["value"] = groups.agg(lambda scores: scores.mean(skipna=False)).to_numpy()
    has_curve = rows.groupby("contestant")["lr"].transform("size") > 1
    if not has_curve.any():
        return None
    return RateCurves(
        rows[has_curve].reset_index(drop=True), metric(str(trials["metric"].iloc[0])), int(trials["steps"].iloc[0])
    )
