"""Bootstrap intervals for means over episodes, computed for all positions of a curve at once.

A resample is determined by how often it contains each episode. The resampled means at all positions are therefore a
matrix product of these counts and the errors, which avoids copying the errors for each resample.
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
    """Return the percentile bootstrap interval of the mean over episodes.

    Args:
        errors: `(episodes, positions)`; NaN marks a missing score.
        seed: the same seed gives the same interval.
        resamples: number of bootstrap samples.
        level: coverage of the interval.
        clusters: cluster of each episode, `(episodes,)`; entire clusters are resampled. If all episodes belong to one
            cluster, they count as independent (default: all episodes are independent).

    Returns:
        Lower and upper ends, `(positions,)` each; NaN for positions that have no score in one of the resamples, which
        happens if few episodes have one.
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
    """Return how often each resample contains each episode, `(resamples, episodes)`."""
    indices = np.random.default_rng(seed).integers(episodes, size=(resamples, episodes))
    indices += episodes * np.arange(resamples)[:, None]
    counts = np.bincount(indices.ravel(), minlength=resamples * episodes)
    return counts.reshape(resamples, episodes).astype(np.float64)


def percentiles(statistics: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the central interval over resamples, `(positions,)` each.

    Args:
        statistics: one statistic per resample, `(resamples, positions)`.
        level: coverage of the interval.
    """
    tail = (1 - level) / 2
    low, high = np.quantile(statistics, [tail, 1 - tail], axis=0)
    return low, high


def summaries(scores: np.ndarray, seed: int, clusters: np.ndarray | None = None) -> list[dict[str, object]]:
    """Return the mean and interval of each column of the scores as `value`, `low`, `high` and `n_episodes`.

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
    """Summarise a mean per event, sum(totals) / sum(counts), in the format of `summaries`; episodes are resampled.

    Args:
        totals: sums over the events of each episode, `(episodes,)`.
        counts: number of events of each episode, `(episodes,)`.
        seed: as in `bootstrap_interval`.
    """
    mean = counts.mean()  # dividing by the mean turns equal counts into exactly 1, so the ratio is then a plain mean
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
