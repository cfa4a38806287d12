"""Bootstrap intervals of means over episodes, for a whole curve at once.

Resampling episodes with replacement is drawing multinomial counts, and the resampled means of all positions are one product of the
counts with the error matrix: no resampled copy of the errors is ever made.
"""

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95


def bootstrap_interval(
    errors: np.ndarray, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of the mean over episodes.

    Args:
        errors: `(episodes, positions)`; NaN where a position was not scored.
        seed: the same seed gives the same interval.
        resamples: bootstrap samples.
        level: coverage.

    Returns:
        Lower and upper ends, `(positions,)` each; NaN where nothing was scored.
    """
    episodes = errors.shape[0]
    counts = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), size=resamples)
    counts = counts.astype(np.float64)
    there = np.isfinite(errors)
    sums = counts @ np.where(there, errors, 0.0)
    weights = np.full_like(sums, episodes) if there.all() else counts @ there
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(weights > 0, sums / weights, np.nan)
    tail = (1 - level) / 2
    ends = np.full((2, errors.shape[1]), np.nan)
    scored = there.any(0)
    if scored.any():
        ends[:, scored] = np.nanquantile(means[:, scored], [tail, 1 - tail], axis=0)
    return ends[0], ends[1]
