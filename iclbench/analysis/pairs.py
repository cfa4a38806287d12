"""Differences between contestants over episodes or seeds, with intervals and tests, and ranks with ties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import stdtrit

from iclbench.tables.curves import has_heights, mean_heights


@dataclass(frozen=True)
class Difference:
    """A mean difference over episodes with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return not self.low <= 0 <= self.high


def difference(a: pd.DataFrame, b: pd.DataFrame, level: float = 0.95) -> Difference | None:
    """The mean of a - b, paired by episode, with Student's t interval.

    The score of an episode is the mean height of its curve over the common context sizes (trapezoidal rule, as in the
    metric `auc`). In event sequences of different lengths, all events have the same weight. If either frame has only
    mean heights (column `MEAN_HEIGHT`), mean heights are compared.

    Args:
        a: scores, episodes x context sizes.
        b: like `a`.
        level: confidence level of the interval.

    Returns:
        The difference; None for fewer than two common episodes or context sizes.
    """
    gaps = curve_gaps(a, b)
    return None if gaps is None else mean_with_interval(gaps, level)


def curve_gaps(a: pd.DataFrame, b: pd.DataFrame) -> np.ndarray | None:
    """The difference a - b of the mean heights of every common episode, `(episodes,)`; see `difference`."""
    if has_heights(a) or has_heights(b):
        return score_gaps(mean_heights(a).dropna(), mean_heights(b).dropna())
    episodes, sizes = a.index.intersection(b.index), a.columns.intersection(b.columns)
    if len(episodes) < 2 or len(sizes) < 2:
        return None
    return mean_heights(a.loc[episodes, sizes] - b.loc[episodes, sizes]).to_numpy(float)


def score_difference(a: pd.Series, b: pd.Series, level: float = 0.95) -> Difference | None:
    """The mean of a - b, paired by episode, for one score per episode; None for fewer than two common episodes."""
    gaps = score_gaps(a, b)
    return None if gaps is None else mean_with_interval(gaps, level)


def score_gaps(a: pd.Series, b: pd.Series) -> np.ndarray | None:
    """The difference a - b of every common episode, `(episodes,)`; None for fewer than two."""
    episodes = a.index.intersection(b.index)
    if len(episodes) < 2:
        return None
    return np.asarray(a[episodes].to_numpy(float) - b[episodes].to_numpy(float))


def mean_with_interval(scores: np.ndarray, level: float = 0.95) -> Difference:
    """The mean of at least two scores, one per episode, with Student's t interval."""
    mean = float(scores.mean())
    half_width = float(stdtrit(len(scores) - 1, 0.5 + level / 2) * scores.std(ddof=1) / np.sqrt(len(scores)))
    return Difference(mean, mean - half_width, mean + half_width)


def welch(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> tuple[Difference, float]:
    """The mean of a minus the mean of b with its interval, and the two-sided p-value (Welch 1947, Biometrika 34).

    The samples are independent, such as the scores of two models over seeds, and have at least two values each.
    """
    from scipy.stats import ttest_ind  # slow to import

    value = float(a.mean() - b.mean())
    if a.std() == b.std() == 0:  # no variance in either sample: the interval has width 0
        return Difference(value, value, value), float(value == 0)
    test = ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(level)
    return Difference(value, float(interval.low), float(interval.high)), float(test.pvalue)


def welch_p(means: tuple[Any, Any], sds: tuple[Any, Any], counts: tuple[Any, Any]) -> Float[np.ndarray, "*pairs"]:
    """The two-sided p-values of Welch's test (`welch`) for many pairs of samples, from their means, standard deviations
    and numbers of values (at least two).

    If neither sample has any variance, p is 0, or NaN if the means are equal.
    """
    from scipy.stats import ttest_ind_from_stats  # slow to import

    samples = zip(means, sds, counts, strict=True)
    test = ttest_ind_from_stats(*(number for sample in samples for number in sample), equal_var=False)
    return np.asarray(test.pvalue)


# Family-wise error rate for tests of several differences.
ERROR_RATE = 0.05


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for multiple tests (Holm 1979, Scandinavian Journal of Statistics 6), in the given order.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p)
    scaled = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(value) for value in corrected]


def mean_ranks(scores: pd.DataFrame, lower_is_better: bool = False) -> pd.Series:
    """The mean rank of each contestant over the rows in which it has a score; 1 is the best, and equal scores share the
    mean of their ranks.

    Args:
        scores: scores, rows x contestants.
        lower_is_better: whether the lowest score is the best.
    """
    return scores.rank(axis=1, ascending=lower_is_better).mean()


def ranks(
    order: Sequence[str],
    episodes: Mapping[str, Any],
    compare: Callable[[Any, Any], Difference | None] = difference,
) -> dict[str, int]:
    """Ranks of contestants. A contestant shares the rank of the contestants above it if it does not differ
    significantly from the best one with this rank.

    A contestant is compared with the best one of the rank, not with its neighbour. Otherwise, a chain of small
    differences could give all contestants the same rank.

    Args:
        order: the contestants from best to worst.
        episodes: the scores of single episodes of each contestant, as an argument of `compare`; None if unknown.
        compare: returns the difference between two contestants; None if it is unknown.
    """
    rank_of: dict[str, int] = {}
    leader = ""
    for position, name in enumerate(order, start=1):
        leader_scores, scores = episodes.get(leader), episodes.get(name)
        gap = compare(scores, leader_scores) if scores is not None and leader_scores is not None else None
        if gap is not None and not gap.is_significant:
            rank_of[name] = rank_of[leader]
        else:
            rank_of[name], leader = position, name
    return rank_of
