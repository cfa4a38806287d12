"""Real tables: contestants by ROC AUC or R², with their values on every table and mean ranks over tables."""

from __future__ import annotations

import math

import pandas as pd

from iclbench.analysis.scores import displayed_columns, leaderboard, metric_columns
from iclbench.analysis.table_ranks import OTHER_TABLE_METRICS, MeanRanks, ranks_over_tables, table_metric
from iclbench.core.formats import fixed, number, plural
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import Slice
from iclbench.report.sections.leaderboard import column_meanings, shown_columns


def section(task: Slice) -> Section | None:
    rows = task.targets[task.targets["shift"] == "none"]
    main = table_metric(rows)
    if main is None:
        return None
    blocks: list[Block] = []
    # Regression tasks have the leaderboard of the section `targets`.
    if main == "roc_auc":
        blocks.append(_leaderboard(task, rows, main))
    if (ranks := ranks_over_tables(rows.assign(status="ok"), main)) is not None:
        blocks.append(_ranks_table(task, ranks))
    return Section(f"{task.id}-table-ranks", "Real tables", tuple(blocks)) if blocks else None


def _leaderboard(task: Slice, rows: pd.DataFrame, main: str) -> Table:
    frame, keys = displayed_columns(leaderboard(task, "targets", by=main)), ["contestant", "n_related"]
    others = [name for name in OTHER_TABLE_METRICS if rows["metric"].eq(name).any()]
    frame = frame.merge(metric_columns(task, "targets", [main]), "left", keys)
    frame = frame.merge(metric_columns(task, "targets", others, fields=["value"]), "left", keys)
    columns = shown_columns(
        frame,
        Column(main, metric(main).label, fixed, True, f"{main}_low", f"{main}_high"),
        *(Column(name, metric(name).label, number, numeric=True) for name in others),
    )
    return Table(
        name=f"{task.id}-leaderboard-tables",
        title=f"{task.task}: leaderboard",
        caption=f"Models and baselines by {metric(main).label}, with 95 % intervals over tables."
        f"{column_meanings(columns)}",
        frame=frame,
        columns=tuple(column for column in columns if column.key != "n_related"),
        group="rank",
    )


def _ranks_table(task: Slice, ranks: MeanRanks) -> Table:
    tables = list(map(str, ranks.scores.index))
    frame = ranks.scores.T.reset_index(names="contestant")
    frame.columns = pd.Index(["contestant", *tables])
    frame.insert(1, "mean_rank", ranks.mean_rank.to_numpy())
    caption = f"{metric(ranks.metric).label} on each of {plural(len(tables), 'table')} and mean rank over tables."
    if not math.isnan(ranks.critical_difference):
        caption += (
            f" Mean ranks that differ by less than {ranks.critical_difference:.2f} are not significantly different "
            f"(Nemenyi's test at 5 %; Friedman's test: p = {ranks.p:.2g})."
        )
    return Table(
        name=f"{task.id}-table-ranks",
        title=f"{task.task}: mean ranks over tables",
        caption=caption,
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("mean_rank", "mean rank", lambda value: fixed(value, 2), numeric=True),
            *(Column(name, name, fixed, numeric=True) for name in tables),
        ),
    )
