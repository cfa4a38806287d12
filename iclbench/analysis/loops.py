"""Values of looped models by the number of iterations."""

from __future__ import annotations

import pandas as pd

from iclbench.tables.evaluators import LOOPS

# The first of these metrics that a run has is shown.
_METRICS = ("auc", "accuracy", "cross_entropy", "log_likelihood", "squared_error")


def loop_values(values: pd.DataFrame) -> pd.DataFrame:
    """Select one row per run, shift and number of loops (column `axis_value`), in this order.

    The rows have one metric per run: the area under the learning curve or, if it has none, the accuracy,
    cross-entropy, log-likelihood or squared error over all context sizes, with all related datasets.

    Args:
        values: rows of the table `values`.
    """
    rows = values[values["axis"].eq(LOOPS).fillna(False) & values["status"].eq("ok")]
    rows = rows[rows["n_context"].isna() & rows["metric"].isin(_METRICS)]
    ranks = rows["metric"].map({name: rank for rank, name in enumerate(_METRICS)})
    rows = rows[ranks.eq(ranks.groupby(rows["run"]).transform("min"))]
    rows = rows.sort_values(["run", "shift", "axis_value", "n_related"], na_position="first", kind="stable")
    return rows.drop_duplicates(["run", "shift", "axis_value"], keep="last", ignore_index=True)
