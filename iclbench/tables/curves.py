"""Learning curves of single episodes.

A frame of curves has a row per episode and a column per context size, or only the column `MEAN_HEIGHT`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

# The only column of a frame that contains mean heights instead of curves.
MEAN_HEIGHT = -1


def has_heights(curves: pd.DataFrame) -> bool:
    """Whether the frame contains mean heights instead of curves."""
    return MEAN_HEIGHT in curves.columns


def mean_heights(curves: pd.DataFrame) -> pd.Series:
    """The mean height of every episode's curve over its context sizes: the area under the curve by the trapezoidal
    rule, per unit of context, or `pooled_heights` if curves end early."""
    if has_heights(curves):
        return curves[MEAN_HEIGHT]
    sizes = curves.columns.sort_values()
    n, values = sizes.to_numpy(dtype=float), curves[sizes].to_numpy(float)
    if np.isnan(values).any():
        return pd.Series(pooled_heights(values, n), index=curves.index)
    return pd.Series(complete_curve_heights(values, n), index=curves.index)


def complete_curve_heights(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean heights of curves that do not end early, `(episodes,)`; NaN without context sizes.

    Args:
        values: curves, `(episodes, sizes)`.
        sizes: context sizes, `(sizes,)`, ascending.
    """
    if len(sizes) < 2:
        return values.mean(1) if len(sizes) else np.full(len(values), np.nan)
    return np.asarray(np.trapezoid(values, sizes, axis=1) / (sizes[-1] - sizes[0]))


def pooled_heights(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean heights of curves that end early, `(episodes,)`. All positions have the same weight: the mean of the
    heights over episodes is the mean over all positions (see `linearised_ratios`). If context sizes are not
    consecutive, trapezoidal integrals replace the sums over positions.

    Args:
        values: curves, `(episodes, sizes)`, NaN after their ends.
        sizes: context sizes, `(sizes,)`, ascending.

    >>> pooled_heights(np.array([[1.0, 2.0, 6.0], [5.0, np.nan, np.nan]]), np.array([0, 1, 2]))
    array([2.75, 4.25])
    """
    return linearised_ratios(*curve_sums(values, ~np.isnan(values), sizes))


def curve_sums(values: np.ndarray, mask: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum over every curve and the number of its positions, `(episodes,)` each. Both are trapezoidal integrals if
    the context sizes are not consecutive.

    Args:
        values: curves, `(episodes, sizes)`. NaN counts as 0.
        mask: positions of the curves, `(episodes, sizes)`.
        sizes: context sizes, `(sizes,)`, ascending.
    """
    n, weights = np.asarray(sizes, dtype=float), mask.astype(float)
    if len(n) < 2 or (np.diff(n) == 1).all():
        return np.nansum(values, axis=1), weights.sum(1)
    return np.trapezoid(np.nan_to_num(values), n, axis=1), np.trapezoid(weights, n, axis=1)


def linearised_ratios(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The linearised ratio of every episode, R + (total - R count) / (mean count), with R = sum(totals) / sum(counts).

    The mean over episodes is R. If the counts are random, the standard error of this mean is, to first order, the
    standard error of R.

    >>> linearised_ratios(np.array([4.0, 4.0]), np.array([1.0, 3.0]))
    array([3., 1.])
    """
    mean = counts.mean()
    if (counts == mean).all():
        return np.asarray(totals / mean)
    ratio = totals.sum() / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / mean)
