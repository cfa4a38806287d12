"""Accuracies with 95% intervals: Wilson intervals for shares of correct answers, otherwise bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from iclbench.core import metrics
from iclbench.evaluation.bootstrap import LEVEL, percentiles, resample_counts, summaries


def summary_columns(
    metric: str, scores: Float[np.ndarray, " E"], seed: int, queries: Int[np.ndarray, " E"] | None = None
) -> dict[str, Any]:
    """Return the columns `value`, `low`, `high` and `n_episodes` of a metric. Episodes whose score is NaN are ignored.

    The interval is a Wilson interval if all scores of the metric are 0 or 1, and a bootstrap interval otherwise. If
    queries repeat with other demonstrations, `queries` is the index of each episode's query. The interval is then a
    bootstrap interval over queries, because episodes with the same query are not independent.
    """
    if queries is not None:
        return mean_over_queries(scores, queries, seed)
    if not metrics.metric(metric).yes_or_no:
        return summaries(scores[:, None], seed)[0]
    finite = scores[np.isfinite(scores)]
    return wilson(int(finite.sum()), len(finite))


def mean_over_queries(scores: Float[np.ndarray, " E"], queries: Int[np.ndarray, " E"], seed: int) -> dict[str, Any]:
    """Return the mean over episodes, with a bootstrap interval over queries."""
    finite = np.isfinite(scores)
    distinct_queries, index = np.unique(queries[finite], return_inverse=True)
    indicator = np.eye(len(distinct_queries))[index]
    counts = resample_counts(len(distinct_queries), seed)
    means = counts @ (scores[finite] @ indicator) / (counts @ indicator.sum(0))
    low, high = percentiles(means[:, None]) if len(distinct_queries) > 1 else ([np.nan], [np.nan])
    mean = float(scores[finite].mean())
    return {"value": mean, "low": float(low[0]), "high": float(high[0]), "n_episodes": int(finite.sum())}


def wilson(n_correct: int, count: int) -> dict[str, Any]:
    """Return the share of correct answers, with its score interval (Wilson 1927)."""
    from scipy.stats import binomtest

    ends = binomtest(n_correct, count).proportion_ci(LEVEL, method="wilson")
    return {"value": n_correct / count, "low": float(ends.low), "high": float(ends.high), "n_episodes": count}


def balanced_accuracy(
    correct: Float[np.ndarray, " E"], targets: Sequence[str], seed: int, queries: Int[np.ndarray, " E"] | None = None
) -> dict[str, Any]:
    """Return the balanced accuracy: the mean recall over classes. Each distinct correct answer is a class.

    The bootstrap interval resamples episodes, or `queries` if queries repeat. Classes that do not occur in a resample
    are omitted from its mean. A single query has no interval.
    """
    finite = np.isfinite(correct)
    classes, index = np.unique(np.array(targets, dtype=object)[finite].astype(str), return_inverse=True)
    indicator = np.eye(len(classes))[index]
    query_index = np.arange(len(index)) if queries is None else np.unique(queries[finite], return_inverse=True)[1]
    n_queries = int(query_index.max()) + 1 if len(query_index) else 0
    counts = np.vstack([np.ones(len(index)), resample_counts(n_queries, seed)[:, query_index]])
    with np.errstate(invalid="ignore"):
        recalls = (counts @ (indicator * correct[finite, None])) / (counts @ indicator)
    means = np.nanmean(recalls, axis=1)
    low, high = percentiles(means[1:, None]) if n_queries > 1 else ([np.nan], [np.nan])
    return {"value": float(means[0]), "low": float(low[0]), "high": float(high[0]), "n_episodes": len(index)}
