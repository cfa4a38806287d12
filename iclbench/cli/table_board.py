"""The table of an evaluation on real tables: contestants sorted by ROC AUC or R², with their mean ranks over tables."""

from __future__ import annotations

import math

import pandas as pd

from iclbench.analysis.scores import run_leaderboard
from iclbench.analysis.table_ranks import OTHER_TABLE_METRICS, ranks_over_tables, table_metric
from iclbench.cli.result_rows import short_score, styled_name, value_with_half_width, with_terminal_columns
from iclbench.core.metrics import metric

# Titles of metrics whose labels are too long for a terminal.
_SHORT_TITLES = {
    "cross_entropy": "log-loss",
    "calibration_error": "calibration",
    "squared_error": "squared error",
    "covered_90": "90 % coverage",
}


def table_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: contestants sorted by the main metric, best first. Failed contestants come
    last."""
    main = table_metric(values)
    assert main is not None
    board = run_leaderboard(values, "targets", main, [main, *OTHER_TABLE_METRICS]).drop_duplicates("contestant")
    other_metrics = [name for name in OTHER_TABLE_METRICS if board[name].notna().any()]
    titles = {name: _SHORT_TITLES.get(name, metric(name).label) for name in other_metrics}
    ranks = ranks_over_tables(values, main, "run")
    statuses = values[values["status"].ne("ok")].drop_duplicates("run").set_index("run")["status"]
    rows = []
    for row in board.to_dict("records"):
        run = str(row["contestant"])
        cells = [] if ranks is None else [f"{ranks.mean_rank[run]:.2f}" if run in ranks.mean_rank else ""]
        cells += ["" if pd.isna(row[name]) else short_score(row[name]) for name in titles]
        if pd.isna(row[main]):
            cells = [str(statuses.get(run, "")), *[""] * len(cells)]
        else:
            cells = [value_with_half_width(row, main), *cells]
        rows.append([styled_name(run, row["kind"]), *cells])
    rank_title = [] if ranks is None else ["mean rank"]
    columns = ["contestant", metric(main).label, *rank_title, *titles.values()]
    return with_terminal_columns(columns, rows, board)


def table_notes(values: pd.DataFrame) -> list[str]:
    """Return the lines below the table: the data sets over which contestants are ranked, and the critical difference of
    mean ranks."""
    main = table_metric(values)
    ranks = None if main is None else ranks_over_tables(values, main, "run")
    if ranks is None:
        return []
    tables = ", ".join(map(str, ranks.scores.index))
    line = f"intervals and ranks are over {len(ranks.scores)} tables ({tables})"
    if not math.isnan(ranks.critical_difference):
        line += f"; mean ranks that differ by less than {ranks.critical_difference:.2f} are not significantly different"
    return [line]
