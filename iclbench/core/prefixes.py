"""Which context sizes a contestant is asked at where asking at every one of them would take too long."""

from __future__ import annotations

import numpy as np


def prefix_grid(points: int, size: int = 8) -> list[int]:
    """A geometric grid of context sizes from 1 to `points`, and 0: a function of the prompt set alone."""
    return sorted({0, *np.unique(np.geomspace(1, points, size).round().astype(int)).tolist()})
