"""In-distribution learning curves: a figure per question and metric, and a table of its values at a few sizes."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import number, slug
from iclbench.core.metrics import curve_metric, metric
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import KINDS, Slice
from iclbench.report.figures import learning
from iclbench.tables.runs import joined_run_names, split_run_names

# Largest number of context sizes in a table.
MAX_SIZES = 8


def section(task: Slice) -> Section | None:
    lines, means = (rows[rows["shift"] == "none"] for rows in (task.curves_by_run, task.curves))
    blocks: list[Block] = []
    groups = {(str(evaluator), str(name)): group for (evaluator, name), group in lines.groupby(["evaluator", "metric"])}
    for evaluator, name in sorted(groups, key=lambda key: (key[0], _sort_key(lines, key[1]))):
        label = metric(name).label
        stem = slug("curves", evaluator, name)
        blocks += [
            learning.figure(
                task,
                {"": groups[evaluator, name]},
                name=stem,
                title=f"{task.task}: learning curves",
                caption=f"{label.capitalize()} against the number of {task.noun} in context, on the training "
                f"distribution{'' if evaluator == 'next' else f' (question: {evaluator})'}.",
            ),
            curve_table(task, means[(means["evaluator"] == evaluator) & (means["metric"] == name)], stem, label),
        ]
    return (
        Section(f"{task.id}-curves", "Learning curves", tuple(blocks), rules=("Learning curves", "Normalisation"))
        if blocks
        else None
    )


def _sort_key(lines: pd.DataFrame, name: str) -> tuple[int, str]:
    """The sort key of a metric: first the metric of the area under the curve, then the gap, then others by name."""
    main_metrics = (curve_metric(lines["metric"].unique()), "gap")
    return (main_metrics.index(name) if name in main_metrics else len(main_metrics)), name


def curve_table(task: Slice, rows: pd.DataFrame, stem: str, label: str) -> Table:
    """The curves as a table, with a row per contestant and a column per context size."""
    sizes = thinned_sizes(sorted(int(n) for n in rows["n_context"].unique()))
    order = {kind: i for i, kind in enumerate(KINDS)}
    wide = rows[rows["n_context"].isin(sizes)].pivot_table("value", index=["kind", "contestant"], columns="n_context")
    wide = wide.reset_index().sort_values("kind", key=lambda k: k.map(order), kind="stable")
    runs = rows.groupby("contestant")["run"].agg(
        lambda names: joined_run_names(run for name in names for run in split_run_names(name))
    )
    wide = wide.rename(columns={n: f"n{n}" for n in sizes}).assign(run=wide["contestant"].map(runs))
    wide = wide[["contestant", "kind", "run", *(f"n{n}" for n in sizes)]]
    columns = [Column("contestant", "contestant")] + [Column(f"n{n}", f"n = {n}", number, numeric=True) for n in sizes]
    limit_note = f", or more {task.noun} than the model supports" if size_limited_contestants(task, rows) else ""
    return Table(
        name=f"{task.id}-{stem}",
        title="Numbers behind the figure",
        caption=f"{label.capitalize()} after n {task.noun}; mean over episodes and seeds. A dash: failed{limit_note}.",
        frame=wide.reset_index(drop=True),
        columns=tuple(columns),
        group="kind",
        folded=True,
    )


def size_limited_contestants(task: Slice, rows: pd.DataFrame) -> list[str]:
    """The contestants that support fewer examples than these curves show. They are skipped at larger sizes."""
    failures = task.failed_rows
    is_skipped_size = failures["status"].eq("skipped") & failures["n_context"].notna()
    is_of_curves = failures["shift"].isin(rows["shift"]) & failures["evaluator"].isin(rows["evaluator"])
    return sorted(failures.loc[is_skipped_size & is_of_curves, "contestant"].unique())


def thinned_sizes(sizes: list[int]) -> list[int]:
    """At most `MAX_SIZES` of the sizes, evenly spaced, including the first and the last.

    >>> thinned_sizes(list(range(21)))
    [0, 3, 6, 9, 11, 14, 17, 20]
    """
    if len(sizes) <= MAX_SIZES:
        return sizes
    step = (len(sizes) - 1) / (MAX_SIZES - 1)
    return [sizes[round(i * step)] for i in range(MAX_SIZES)]
