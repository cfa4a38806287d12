"""Paired comparisons of contestants on the same episodes, and ranks that admit ties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from iclbench.tables.curves import has_heights, heights


@dataclass(frozen=True)
class Difference:
    """A mean difference over episodes with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def tied(self) -> bool:
        return self.low <= 0 <= self.high


def difference(a: pd.DataFrame, b: pd.DataFrame, level: float = 0.95) -> Difference | None:
    """Mean of a - b, paired by episode, with Student's t interval.

    Both frames are episodes x context sizes; each episode's score is the mean height of its curve (trapezoids, as in
    `auc`) over the context sizes that both have, of event sequences that end early every event
    counting as much. None when they share fewer than two episodes or two context sizes.
    Where either frame has nothing but mean heights (column `AREA`), mean heights are compared.
    """
    gaps = curve_gaps(a, b)
    return None if gaps is None else mean_of(gaps, level)


def curve_gaps(a: pd.DataFrame, b: pd.DataFrame) -> np.ndarray | None:
    """a - b of every shared episode, `(episodes,)`, as `difference` has them."""
    if has_heights(a) or has_heights(b):
        return score_gaps(heights(a).dropna(), heights(b).dropna())
    episodes, sizes = a.index.intersection(b.index), a.columns.intersection(b.columns).sort_values()
    if len(episodes) < 2 or len(sizes) < 2:
        return None
    return heights(a.loc[episodes, sizes] - b.loc[episodes, sizes]).to_numpy(float)


def score_difference(a: pd.Series, b: pd.Series, level: float = 0.95) -> Difference | None:
    """The same for contestants with one score per episode (question `targets`)."""
    gaps = score_gaps(a, b)
    return None if gaps is None else mean_of(gaps, level)


def score_gaps(a: pd.Series, b: pd.Series) -> np.ndarray | None:
    """a - b of every shared episode, at least two."""
    episodes = a.index.intersection(b.index)
    if len(episodes) < 2:
        return None
    return np.asarray(a[episodes].to_numpy(float) - b[episodes].to_numpy(float))


def mean_of(scores: np.ndarray, level: float = 0.95) -> Difference:
    """Mean of one value per episode, at least two, with Student's t interval."""
    mean = float(scores.mean())
    half = float(stdtrit(len(scores) - 1, 0.5 + level / 2) * scores.std(ddof=1) / np.sqrt(len(scores)))
    return Difference(mean, mean - half, mean + half)


def chance(scores: np.ndarray) -> float:
    """How likely so large a mean of one value per episode or seed is where there is no difference: Student's t, both
    ways."""
    with np.errstate(divide="ignore"):
        t = scores.mean() / (scores.std(ddof=1) / np.sqrt(len(scores)))
    return float(2 * stdtr(len(scores) - 1, -abs(t)))


# The chance of an error that tests of many differences allow, all together.
LEVEL = 0.05


def holm(p: Sequence[float]) -> list[float]:
    """The correction of so many p values (Holm 1979, Scandinavian Journal of Statistics 6), in their order: that any of
    those below a level is an error has at most that chance, however many there are.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(value) for value in found]


def ranks(
    order: Sequence[str],
    episodes: Mapping[str, Any],
    compare: Callable[[Any, Any], Difference | None] = difference,
) -> dict[str, int]:
    """Ranks for contestants sorted from best to worst. Whoever cannot be told apart from the first of a rank shares it.

    `episodes` holds what `compare` takes, or None. Comparing with the first of the group, not with the neighbour,
    keeps a chain of small steps from ending in one rank.
    """
    found: dict[str, int] = {}
    leader = ""
    for position, name in enumerate(order, start=1):
        first, own = episodes.get(leader), episodes.get(name)
        gap = compare(own, first) if own is not None and first is not None else None
        if gap is not None and gap.tied:
            found[name] = found[leader]
        else:
            found[name], leader = position, name
    return found
