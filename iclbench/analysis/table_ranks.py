"""Mean ranks of contestants over data sets, with the critical difference of Nemenyi's test (Demšar 2006, JMLR 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from iclbench.analysis import pairs
from iclbench.core.metrics import metric as metric_of
from iclbench.tables.means import means_over_seeds

_STRATUM = "stratum:"
# The metrics by which contestants are ranked in tasks with real tables.
TABLE_METRICS = ("roc_auc", "r_squared")
# The other metrics in leaderboards of these tasks, in the order of their columns.
OTHER_TABLE_METRICS = ("accuracy", "cross_entropy", "calibration_error", "squared_error", "crps", "covered_90")


@dataclass(frozen=True)
class MeanRanks:
    """Mean ranks over data sets.

    Attributes:
        metric: the metric of the ranks.
        scores: values of the metric, data sets x contestants, the best mean rank first.
        mean_rank: mean rank of every contestant, in the order of the columns; 1 is the best, and equal values share the
            mean of their ranks.
        critical_difference: mean ranks that differ by less are not significantly different; NaN for fewer than two data
            sets or contestants.
        p: the p-value of Friedman's test of the hypothesis that all contestants are equal, with the F statistic of Iman
            and Davenport; NaN if the critical difference is NaN.
    """

    metric: str
    scores: pd.DataFrame
    mean_rank: pd.Series
    critical_difference: float
    p: float


def mean_ranks(values: pd.DataFrame, metric: str) -> MeanRanks:
    """Compute mean ranks from the values of a metric, data sets x contestants. Contestants with a missing value are
    left out."""
    values = values.dropna(axis=1)
    ranks = pairs.mean_ranks(values, metric_of(metric).lower_is_better)
    order = sorted(ranks.index, key=lambda name: (ranks[name], str(name)))
    n, k = values.shape
    return MeanRanks(metric, values[order], ranks[order], critical_difference(k, n), _friedman_p(ranks, n))


def critical_difference(contestants: int, data_sets: int) -> float:
    """The critical difference of mean ranks at the level of 5 %: q sqrt(k (k + 1) / (6 N)), where sqrt(2) q is the
    quantile of the studentised range of k contestants.

    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    if contestants < 2 or data_sets < 2:
        return math.nan
    from scipy.stats import studentized_range  # slow to import

    q = float(studentized_range.ppf(1 - pairs.ERROR_RATE, contestants, math.inf)) / math.sqrt(2)
    return q * math.sqrt(contestants * (contestants + 1) / (6 * data_sets))


def _friedman_p(ranks: pd.Series, n: int) -> float:
    k = len(ranks)
    if k < 2 or n < 2:
        return math.nan
    from scipy.stats import f

    chi_squared = 12 * n / (k * (k + 1)) * float((ranks.astype(float) ** 2).sum()) - 3 * n * (k + 1)
    denominator = n * (k - 1) - chi_squared
    return 0.0 if denominator <= 0 else float(f.sf((n - 1) * chi_squared / denominator, k - 1, (k - 1) * (n - 1)))


def table_values(rows: pd.DataFrame, metric: str, contestant: str = "contestant") -> pd.DataFrame:
    """The values of a metric on every table, averaged over seeds, tables x contestants. The frame is empty if the rows
    have no values for single tables.

    Args:
        rows: rows of `values` of one prompt set.
        metric: the metric.
        contestant: the column of the contestants, `contestant` or `run`.
    """
    is_table = rows["axis"].str.startswith(_STRATUM) & rows["status"].eq("ok")
    selected_rows = rows[is_table & rows["metric"].eq(metric)]
    means = means_over_seeds(selected_rows, list(dict.fromkeys(["stratum", contestant])))
    return means.pivot_table("value", "stratum", contestant).astype(float)


def ranks_over_tables(rows: pd.DataFrame, metric: str, contestant: str = "contestant") -> MeanRanks | None:
    """The mean ranks over tables, with the arguments of `table_values`; None if no contestant has values on all
    tables."""
    values = table_values(rows, metric, contestant)
    return None if values.dropna(axis=1).empty else mean_ranks(values, metric)


def table_metric(rows: pd.DataFrame) -> str | None:
    """The metric by which contestants are ranked in a task with real tables; None for other tasks."""
    measured_metrics = set(rows.loc[rows["evaluator"].eq("targets"), "metric"])
    return next((name for name in TABLE_METRICS if name in measured_metrics), None)
