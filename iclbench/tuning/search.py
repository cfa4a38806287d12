"""Which settings to try next, from what was found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Protocol

from iclbench.tuning.curves import Curve, Point

# How often the range of rates is widened at either end.
WIDENED = 2


# How often a test calls equal settings different.
_LEVEL = 0.05


class Search(Protocol):
    """A way of looking for settings."""

    def points(self, curve: Curve) -> list[Point]:
        """What was found so far, all seeds done."""

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Settings to try, side by side; none: the search is over."""


def best(points: Sequence[Point], sign: int) -> Point | None:
    """The point of the best mean, of equal ones that of the smallest rate; None: everything failed.

    Args:
        points: what was tried.
        sign: 1 where less is better, else -1.
    """
    there = [(sign * point.value, point.lr, point) for point in points if point.value is not None]
    return min(there, key=lambda each: each[:2])[-1] if there else None


def not_different(points: Sequence[Point], chosen: Point, seeds: int) -> list[Point]:
    """The points whose means over seeds are not significantly different from the chosen one (Welch's t-test, 5 %)."""
    from scipy import stats

    found = []
    for point in points:
        if point == chosen or point.value is None or chosen.value is None:
            continue
        spread = (point.sd or 0.0) + (chosen.sd or 0.0)
        if seeds > 1 and spread > 0:
            of = (chosen.value, chosen.sd, seeds, point.value, point.sd, seeds)
            same = float(stats.ttest_ind_from_stats(*of, equal_var=False).pvalue) > _LEVEL
        else:  # one seed has no spread, and equal seeds no doubt
            same = seeds == 1 or point.value == chosen.value
        if same:
            found.append(point)
    return found


@dataclass(frozen=True)
class RateSearch:
    """Some learning rates, and further ones where the best stands at the edge of what was tried.

    Attributes:
        rates: those that are tried in any case.
        sign: 1 where less is better, else -1.
    """

    rates: Sequence[float]
    sign: int

    def points(self, curve: Curve) -> list[Point]:
        """The points at which nothing but the rate differs from the preset, those of earlier commands among them."""
        return curve.rates()

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """The rates themselves; then, where the smallest or the largest of all that were tried is best, one beyond it,
        `WIDENED` times at most at either end. Where everything diverged, one below the smallest."""
        tried = sorted({point.lr for point in points})
        if missing := [rate for rate in self.rates if rate not in tried]:
            return [{"lr": rate} for rate in missing]
        found = best(points, self.sign)
        low, high = min(self.rates), max(self.rates)
        if found is None or found.lr == tried[0]:
            below = sum(rate < low for rate in tried)
            return [{"lr": beyond(tried[0], -1)}] if below < WIDENED else []
        if found.lr == tried[-1]:
            above = sum(rate > high for rate in tried)
            return [{"lr": beyond(tried[-1], 1)}] if above < WIDENED else []
        return []

    def at_edge(self, points: Sequence[Point]) -> bool:
        """Whether the best rate is still the smallest or the largest that was tried."""
        found, tried = best(points, self.sign), [point.lr for point in points]
        return found is not None and found.lr in (min(tried), max(tried))


def beyond(rate: float, direction: int) -> float:
    """A rate about three times as large (`direction` 1) or as small (-1), in the series 1, 3, 10, ... where the rate is
    in it.

    >>> beyond(1e-3, -1), beyond(3e-4, -1), beyond(1e-2, 1), beyond(3e-2, 1), beyond(2e-3, 1)
    (0.0003, 0.0001, 0.03, 0.1, 0.006)
    """
    series = [float(f"{digit}e{power}") for power in range(-12, 6) for digit in (1, 3)]
    near = min(range(len(series)), key=lambda index: abs(log10(series[index] / rate)))
    if abs(log10(series[near] / rate)) < 1e-9 and 0 <= near + direction < len(series):
        return series[near + direction]
    return float(f"{rate * 3.0**direction:.2g}")
