"""Bootstrap intervals of means over episodes, for all positions of a curve at once.

A resample is determined by how often it contains each episode. So the resampled means of all positions are the product
of these counts and the matrix of errors, and the errors are not copied for each resample.
"""

import math

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95


def bootstrap_interval(
    errors: np.ndarray,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    clusters: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of the mean over episodes.

    Args:
        errors: `(episodes, positions)`; NaN without a score.
        seed: the same seed gives the same interval.
        resamples: number of bootstrap samples.
        level: coverage of the interval.
        clusters: cluster of every episode, `(episodes,)`; all episodes of a resampled cluster are used. Episodes of a
            single cluster count as independent (default: all are).

    Returns:
        Lower and upper ends, `(positions,)` each; NaN for positions without a score.
    """
    episodes = errors.shape[0]
    numbers = np.arange(episodes) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    if numbers.size and numbers.max() == 0:
        numbers = np.arange(episodes)
    has_clusters = clusters is not None and numbers.max(initial=0) + 1 < episodes
    counts = resample_counts(int(numbers.max(initial=-1)) + 1, seed, resamples)[:, numbers]
    is_finite = np.isfinite(errors)
    sums = counts @ np.where(is_finite, errors, 0.0)
    weights = np.full_like(sums, episodes) if is_finite.all() and not has_clusters else counts @ is_finite
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(weights > 0, sums / weights, np.nan)
    return percentiles(means, level)


def resample_counts(episodes: int, seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each resample contains each episode, `(resamples, episodes)`."""
    indices = np.random.default_rng(seed).integers(episodes, size=(resamples, episodes))
    indices += episodes * np.arange(resamples)[:, None]
    counts = np.bincount(indices.ravel(), minlength=resamples * episodes)
    return counts.reshape(resamples, episodes).astype(np.float64)


def percentiles(statistics: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the central interval of statistics over resamples `(resamples, positions)`, `(positions,)` each."""
    tail = (1 - level) / 2
    low, high = np.quantile(statistics, [tail, 1 - tail], axis=0)
    return low, high


def summaries(scores: np.ndarray, seed: int, clusters: np.ndarray | None = None) -> list[dict[str, object]]:
    """Mean and interval of each column of the scores, as columns `value`, `low`, `high` and `n_episodes` of a table.

    Args:
        scores: `(episodes, columns)`, NaN for missing scores. The interval of a single episode is NaN.
        seed, clusters: as in `bootstrap_interval`.
    """
    counts = np.isfinite(scores).sum(0)
    ends = bootstrap_interval(scores, seed, clusters=clusters)
    low, high = (np.where(counts > 1, end, np.nan) for end in ends)
    means = np.nansum(scores, 0) / np.maximum(counts, 1)
    return [
        {"value": float(m), "low": float(a), "high": float(b), "n_episodes": int(c)}
        for m, a, b, c in zip(means, low, high, counts, strict=True)
    ]


def ratio_summary(totals: np.ndarray, counts: np.ndarray, seed: int) -> dict[str, object]:
    """The columns of `summaries` for a mean per event, sum(totals) / sum(counts), over resampled episodes.

    Args:
        totals: sums over the events of each episode, `(episodes,)`.
        counts: number of events of each episode, `(episodes,)`.
        seed: as in `bootstrap_interval`.
    """
    mean = counts.mean()  # after division by it, equal counts are 1, so the ratio is the plain mean
    sums, weights = (totals / mean)[:, None], (counts / mean)[:, None]
    resamples = resample_counts(len(totals), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = percentiles((resamples @ sums) / (resamples @ weights))
    has_interval = len(totals) > 1
    return {
        "value": float(sums.sum(0)[0] / weights.sum()),
        "low": float(low[0]) if has_interval else math.nan,
        "high": float(high[0]) if has_interval else math.nan,
        "n_episodes": len(totals),
    }
