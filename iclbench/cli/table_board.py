"""The table of an evaluation on real tables: contestants sorted by ROC AUC or R², with their mean ranks over tables."""

from __future__ import annotations

import math

import pandas as pd

from iclbench.analysis.scores import run_leaderboard
from iclbench.analysis.table_ranks import mean_ranks, table_metric, table_values
from iclbench.cli.result_rows import short_score, styled_name, value_with_half_width, with_terminal_columns
from iclbench.core.metrics import metric

# Metrics in the other columns, with their short titles.
_COLUMNS = {
    "accuracy": "accuracy",
    "cross_entropy": "log-loss",
    "calibration_error": "calibration",
    "squared_error": "squared error",
    "crps": "CRPS",
    "covered_90": "in 90 %",
}


def table_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: contestants sorted by the main metric, best first. Failed contestants come
    last."""
    main = table_metric(values)
    assert main is not None
    ok_rows = values[values["status"].eq("ok") & values["axis"].isna()]
    ranking = run_leaderboard(values, "targets", by=main).drop_duplicates("contestant")
    kinds = dict(zip(ranking["contestant"], ranking["kind"], strict=True))
    by_metric = {name: rows.set_index("run") for name, rows in ok_rows.groupby("metric")}
    mean_rank = _mean_rank(values, main)
    titles = {name: title for name, title in _COLUMNS.items() if name in by_metric}
    statuses = values[values["status"].ne("ok")].drop_duplicates("run").set_index("run")["status"]
    rows = []
    for run in ranking["contestant"]:
        if run not in by_metric[main].index:
            blanks = [""] * (len(titles) + (len(mean_rank) > 0))
            rows.append([styled_name(run, kinds[run]), str(statuses.get(run, "")), *blanks])
            continue
        cells = [short_score(by_metric[m].loc[run, "value"]) if run in by_metric[m].index else "" for m in titles]
        rank_cell = [f"{mean_rank[run]:.2f}" if run in mean_rank else ""] if len(mean_rank) else []
        rows.append([styled_name(run, kinds[run]), value_with_half_width(by_metric[main].loc[run]), *rank_cell, *cells])
    rank_title = ["mean rank"] if len(mean_rank) else []
    columns = ["contestant", metric(main).label, *rank_title, *titles.values()]
    return with_terminal_columns(columns, rows, ranking)


def table_notes(values: pd.DataFrame) -> list[str]:
    """Return the lines below the table: the data sets over which contestants are ranked, and the critical difference of
    mean ranks."""
    main = table_metric(values)
    by_table = table_values(values, main, "run") if main else pd.DataFrame()
    if by_table.empty:
        return []
    ranks = mean_ranks(by_table, str(main))
    tables = ", ".join(map(str, by_table.index))
    line = f"intervals and ranks are over {len(by_table)} tables ({tables})"
    if not math.isnan(ranks.critical_difference):
        line += f"; mean ranks that differ by less than {ranks.critical_difference:.2f} are not significantly different"
    return [line]


def _mean_rank(values: pd.DataFrame, main: str) -> pd.Series:
    by_table = table_values(values, main, "run")
    return pd.Series(dtype=float) if by_table.empty else mean_ranks(by_table, main).mean_rank
