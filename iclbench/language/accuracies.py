"""Accuracies with their intervals: Wilson's for the share that is right, the bootstrap for the mean over classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from iclbench.core import metrics
from iclbench.evaluation.bootstrap import LEVEL, percentiles, resampled_counts, summaries


def summarised(metric: str, scores: Float[np.ndarray, " E"], seed: int) -> dict[str, Any]:
    """Columns `value`, `low`, `high` and `n_episodes`: of 0 and 1 with Wilson's interval, of others with a bootstrap
    interval; NaN does not count."""
    if not metrics.metric(metric).yes_or_no:
        return summaries(scores[:, None], seed)[0]
    known = scores[np.isfinite(scores)]
    return wilson(int(known.sum()), len(known))


def wilson(right: int, asked: int) -> dict[str, Any]:
    """The share that is right, with Wilson's score interval (1927)."""
    from scipy.stats import binomtest

    ends = binomtest(right, asked).proportion_ci(LEVEL, method="wilson")
    return {"value": right / asked, "low": float(ends.low), "high": float(ends.high), "n_episodes": asked}


def balanced(correct: Float[np.ndarray, " E"], targets: Sequence[str], seed: int) -> dict[str, Any]:
    """The mean over classes of the share that is right, classes being the right answers; with the bootstrap's interval,
    in which a class that a resample has none of does not count. A single question has no interval."""
    known = np.isfinite(correct)
    classes, index = np.unique(np.array(targets, dtype=object)[known].astype(str), return_inverse=True)
    of_class = np.eye(len(classes))[index]
    counts = np.vstack([np.ones(len(index)), resampled_counts(len(index), seed)])
    with np.errstate(invalid="ignore"):
        recalls = (counts @ (of_class * correct[known, None])) / (counts @ of_class)
    means = np.nanmean(recalls, axis=1)
    low, high = percentiles(means[1:, None]) if len(index) > 1 else ([np.nan], [np.nan])
    return {"value": float(means[0]), "low": float(low[0]), "high": float(high[0]), "n_episodes": len(index)}
