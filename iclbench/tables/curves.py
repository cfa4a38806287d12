"""Curves of errors in tables of episodes: episodes by context sizes, or mean heights where no more is kept."""

from __future__ import annotations

import numpy as np
import pandas as pd

# The column of curves of which only mean heights are known.
AREA = -1


def has_heights(curves: pd.DataFrame) -> bool:
    """Whether mean heights are all that is known."""
    return AREA in curves.columns


def heights(curves: pd.DataFrame) -> pd.Series:
    """The mean height of every episode's curve over its context sizes, by trapezoids; where curves end early, as
    `pooled` has it."""
    if has_heights(curves):
        return curves[AREA]
    sizes = curves.columns.sort_values()
    n, values = sizes.to_numpy(dtype=float), curves[sizes].to_numpy(float)
    if np.isnan(values).any():
        return pd.Series(pooled(values, n), index=curves.index)
    if len(n) < 2:
        return curves.mean(axis=1)
    return pd.Series(np.trapezoid(values, n, axis=1) / (n[-1] - n[0]), index=curves.index)


def pooled(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Heights of curves that end early, NaN from there on, each position counting as much: their mean over episodes is
    that over all positions, see `ratios`. On a grid of sizes both sums are integrals by trapezoids.

    >>> pooled(np.array([[1.0, 2.0, 6.0], [5.0, np.nan, np.nan]]), np.array([0, 1, 2]))
    array([2.75, 4.25])

    Args:
        values: `(episodes, sizes)`.
        sizes: ascending, `(sizes,)`.
    """
    return ratios(*sums(values, ~np.isnan(values), sizes))


def sums(values: np.ndarray, counted: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum over every curve and the number of its positions that count, `(episodes,)` each.

    Args:
        values: `(episodes, sizes)`; NaN adds nothing.
        counted: which positions count.
        sizes: ascending, `(sizes,)`.
    """
    n, counted = np.asarray(sizes, dtype=float), counted.astype(float)
    if len(n) < 2 or (np.diff(n) == 1).all():
        return np.nansum(values, axis=1), counted.sum(1)
    return np.trapezoid(np.nan_to_num(values), n, axis=1), np.trapezoid(counted, n, axis=1)


def ratios(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Per episode a number whose mean over episodes is sum(totals) / sum(counts), and whose spread is that of this
    ratio to first order, counts being random too: R + (total - R count) / (mean count).

    >>> ratios(np.array([4.0, 4.0]), np.array([1.0, 3.0]))
    array([3., 1.])
    """
    mean = counts.mean()
    if (counts == mean).all():
        return np.asarray(totals / mean)
    ratio = totals.sum() / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / mean)
