"""In-distribution learning curves: a figure per question and metric, and the numbers behind it at a few sizes."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import number, slug
from iclbench.core.metrics import curve_metric, metric
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import KINDS, Slice
from iclbench.report.figures import learning
from iclbench.tables.runs import named, runs_of

AT_MOST = 8


def section(task: Slice) -> Section | None:
    lines, means = (rows[rows["shift"] == "none"] for rows in (task.curves_by_run, task.curves))
    blocks: list[Block] = []
    groups = sorted(
        lines.groupby(["evaluator", "metric"]), key=lambda each: (str(each[0][0]), _place(lines, str(each[0][1])))
    )
    for (evaluator, name), group in groups:
        label = metric(str(name)).label
        stem = slug("curves", str(evaluator), str(name))
        blocks += [
            learning.figure(
                task,
                {"": group},
                name=stem,
                title=f"{task.task}: learning curves",
                caption=f"{label.capitalize()} against the number of examples in context, on the training distribution"
                f"{'' if evaluator == 'next' else f' (question: {evaluator})'}.",
            ),
            numbers(task, means[(means["evaluator"] == evaluator) & (means["metric"] == name)], stem, label),
        ]
    return Section(f"{task.id}-curves", "Learning curves", tuple(blocks)) if blocks else None


def _place(lines: pd.DataFrame, name: str) -> tuple[int, str]:
    """Where the figure of a metric stands: first what the area is of, then the gap to the oracle, then by name."""
    first = (curve_metric(lines["metric"].unique()), "gap")
    return (first.index(name) if name in first else len(first)), name


def numbers(task: Slice, rows: pd.DataFrame, stem: str, label: str) -> Table:
    """The curves as a table: a row per contestant, a column per context size."""
    sizes = thinned(sorted(int(n) for n in rows["n_context"].unique()))
    order = {kind: i for i, kind in enumerate(KINDS)}
    wide = rows[rows["n_context"].isin(sizes)].pivot_table("value", index=["kind", "contestant"], columns="n_context")
    wide = wide.reset_index().sort_values("kind", key=lambda k: k.map(order), kind="stable")
    runs = rows.groupby("contestant")["run"].agg(lambda names: named(run for each in names for run in runs_of(each)))
    wide = wide.rename(columns={n: f"n{n}" for n in sizes}).assign(run=wide["contestant"].map(runs))
    wide = wide[["contestant", "kind", "run", *(f"n{n}" for n in sizes)]]
    columns = [Column("contestant", "contestant")] + [Column(f"n{n}", f"n = {n}", number, numeric=True) for n in sizes]
    beyond = ", or more examples than the model supports" if beyond_what_is_taken(task, rows) else ""
    return Table(
        name=f"{task.id}-{stem}",
        title="Numbers behind the figure",
        caption=f"{label.capitalize()} after n examples; mean over episodes and seeds. A dash: failed{beyond}.",
        frame=wide.reset_index(drop=True),
        columns=tuple(columns),
        group="kind",
        folded=True,
    )


def beyond_what_is_taken(task: Slice, rows: pd.DataFrame) -> list[str]:
    """The contestants that were skipped at some context sizes of these curves, which they do not take."""
    v = task.failed
    own = v["status"].eq("skipped") & v["n_context"].notna() & v["shift"].isin(rows["shift"])
    return sorted(v.loc[own & v["evaluator"].isin(rows["evaluator"]), "contestant"].unique())


def thinned(sizes: list[int]) -> list[int]:
    """At most eight of the sizes, evenly spread, first and last included."""
    if len(sizes) <= AT_MOST:
        return sizes
    step = (len(sizes) - 1) / (AT_MOST - 1)
    return [sizes[round(i * step)] for i in range(AT_MOST)]
