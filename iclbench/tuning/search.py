"""Selection of the settings to try next, and of the final choice, from the points so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10, sqrt
from typing import Any, Protocol

from iclbench.analysis.pairs import welch_p
from iclbench.tuning.curves import Curve, Point

# Maximum number of extensions of the range of learning rates at each end.
MAX_EXTENSIONS = 2
# Significance level of the test for a difference between settings.
_LEVEL = 0.05


class Search(Protocol):
    """A search method for settings."""

    def points(self, curve: Curve) -> list[Point]:
        """Return the points so far for which all seeds are finished."""

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Return the settings to try next, in parallel; empty if the search is over."""


def find_best(points: Sequence[Point], sign: int) -> Point | None:
    """Return the point with the best mean; with ties, the point with the smallest learning rate; None if all failed.

    Args:
        points: the points of a search.
        sign: 1 if lower is better, otherwise -1.
    """
    candidates = [(sign * point.value, point.lr, point) for point in points if point.value is not None]
    return min(candidates, key=lambda each: each[:2])[-1] if candidates else None


def find_choice(points: Sequence[Point], sign: int, seeds: int) -> Point | None:
    """Return the point with the smallest learning rate within one standard error of the best mean; None if all failed.

    This is the one-standard-error rule of Breiman et al. (1984). It prefers small rates, because the largest good rate
    is often close to rates at which training fails, so other seeds may fail at it. The standard error is the standard
    error of the best point's mean over seeds, and 0 for a single seed.

    Args:
        points: the points of a search.
        sign: 1 if lower is better, otherwise -1.
        seeds: number of seeds of each point.
    """
    best_point = find_best(points, sign)
    if best_point is None or best_point.value is None:
        return None
    worst = sign * best_point.value + (best_point.sd or 0.0) / sqrt(seeds)
    good_points = [point for point in points if point.value is not None and sign * point.value <= worst]
    smallest = min(point.lr for point in good_points)
    return find_best([point for point in good_points if point.lr == smallest], sign)


def not_different(points: Sequence[Point], choice: Point, seeds: int) -> list[Point]:
    """Return the points whose means over seeds do not differ significantly from the choice (Welch's t-test, 5 %)."""
    equal_points = []
    for point in points:
        if point == choice or point.value is None or choice.value is None:
            continue
        # A single seed cannot show a significant difference.
        sds = (choice.sd or 0.0, point.sd or 0.0)
        if seeds == 1 or not welch_p((choice.value, point.value), sds, (seeds, seeds)) <= _LEVEL:
            equal_points.append(point)
    return equal_points


@dataclass(frozen=True)
class RateSearch:
    """A search over some learning rates, which is extended while the best rate is at an edge of the tried range.

    Attributes:
        rates: learning rates that are always tried.
        sign: 1 if lower is better, otherwise -1.
    """

    rates: Sequence[float]
    sign: int

    def points(self, curve: Curve) -> list[Point]:
        """Return the points at which only the rate differs from the preset, including points from earlier commands."""
        return curve.rate_points()

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Return the rates of the search first, and then extensions of their range.

        If the smallest or the largest tried rate is best, the next rate is beyond it, at most `MAX_EXTENSIONS` times at
        each end. If training fails at all rates, the next rate is below the smallest.
        """
        tried_rates = sorted({point.lr for point in points})
        if missing := [rate for rate in self.rates if rate not in tried_rates]:
            return [{"lr": rate} for rate in missing]
        best_point = find_best(points, self.sign)
        low, high = min(self.rates), max(self.rates)
        if best_point is None or best_point.lr == tried_rates[0]:
            below = sum(rate < low for rate in tried_rates)
            return [{"lr": neighbour_rate(tried_rates[0], -1)}] if below < MAX_EXTENSIONS else []
        if best_point.lr == tried_rates[-1]:
            above = sum(rate > high for rate in tried_rates)
            return [{"lr": neighbour_rate(tried_rates[-1], 1)}] if above < MAX_EXTENSIONS else []
        return []

    def is_at_edge(self, points: Sequence[Point]) -> bool:
        """Return whether the best rate is the smallest or the largest tried rate."""
        best_point, tried_rates = find_best(points, self.sign), [point.lr for point in points]
        return best_point is not None and best_point.lr in (min(tried_rates), max(tried_rates))


def neighbour_rate(rate: float, direction: int) -> float:
    """Return a rate that is about three times larger (`direction` 1) or smaller (-1).

    If the rate belongs to the series 1, 3, 10, ..., the result is its neighbour in the series.

    >>> neighbour_rate(1e-3, -1), neighbour_rate(3e-4, -1), neighbour_rate(1e-2, 1)
    (0.0003, 0.0001, 0.03)
    >>> neighbour_rate(3e-2, 1), neighbour_rate(2e-3, 1)
    (0.1, 0.006)
    """
    series = [float(f"{digit}e{power}") for power in range(-12, 6) for digit in (1, 3)]
    nearest = min(range(len(series)), key=lambda index: abs(log10(series[index] / rate)))
    if abs(log10(series[nearest] / rate)) < 1e-9 and 0 <= nearest + direction < len(series):
        return series[nearest + direction]
    return float(f"{rate * 3.0**direction:.2g}")
