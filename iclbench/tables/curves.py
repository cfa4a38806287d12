"""Curves of errors in tables of episodes: episodes by context sizes, or mean heights where no more is kept."""

from __future__ import annotations

import numpy as np
import pandas as pd

# Columns of curves of which only mean heights are known: over all context sizes, and over those few that costly
# baselines are asked at (`coarse` in tables of errors).
AREA, COARSE = -1, -2


def has_heights(curves: pd.DataFrame) -> bool:
    """Whether mean heights are all that is known."""
    return AREA in curves.columns or COARSE in curves.columns


def heights(curves: pd.DataFrame) -> pd.Series:
    """The mean height of every episode's curve over its context sizes, by trapezoids."""
    if has_heights(curves):
        return curves[AREA if AREA in curves.columns else COARSE]
    sizes = curves.columns.sort_values()
    n = sizes.to_numpy(dtype=float)
    if len(n) < 2:
        return curves.mean(axis=1)
    return pd.Series(np.trapezoid(curves[sizes].to_numpy(float), n, axis=1) / (n[-1] - n[0]), index=curves.index)
