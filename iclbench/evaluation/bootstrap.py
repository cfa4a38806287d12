"""Bootstrap intervals of means over episodes, for a whole curve at once.

How often each episode is drawn is all that a resample is, and the resampled means of all positions are one product of
these counts with the error matrix: no resampled copy of the errors is ever made.
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
    picks = np.random.default_rng(seed).integers(episodes, size=(resamples, episodes))
    picks += episodes * np.arange(resamples)[:, None]
    counts = np.bincount(picks.ravel(), minlength=resamples * episodes).reshape(resamples, episodes).astype(np.float64)
    there = np.isfinite(errors)
    sums = counts @ np.where(there, errors, 0.0)
    weights = np.full_like(sums, episodes) if there.all() else counts @ there
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(weights > 0, sums / weights, np.nan)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high
