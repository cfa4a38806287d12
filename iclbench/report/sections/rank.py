"""Rank of the matrix of predictions (contexts x queries) against the number of contexts.

If a prediction is the inner product of a vector of the context and a vector of the query, the rank is at most the
dimension of these vectors. The rank of softmax attention grows with the number of contexts (CoQE, theorem 3.10).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from iclbench.analysis.target_scores import shifts
from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.style import ZERO
from iclbench.report.titles import shift_title
from iclbench.tables.means import means_over_seeds

CEILING = "number of contexts"
_METRICS = ("effective_rank", "rank")


def section(task: Slice) -> Section | None:
    rows = task.rank_and_representation_rows
    rows = rows[(rows["evaluator"] == "rank") & (rows["axis"] == "contexts") & rows["metric"].isin(_METRICS)]
    blocks: list[Block] = [_figure(task, shift, rows[rows["shift"] == shift]) for shift in shifts(rows)]
    return (
        Section(f"{task.id}-rank", "Rank of the predictions", tuple(blocks), rules=("Rank of predictions",))
        if blocks
        else None
    )


def _figure(task: Slice, shift: str, rows: pd.DataFrame) -> Figure:
    """A figure with a panel per metric of rank and number of examples, and a line per contestant."""
    keys = ["metric", "kind", "contestant", "n_context", "axis_value"]
    means = means_over_seeds(rows, keys)
    means = means.assign(low=means["lowest"], high=means["highest"])
    means["panel"] = _panels(means)
    titles = means.drop_duplicates("panel")["panel"].tolist()
    ends = curves.extent(means["axis_value"])
    looks = learning.looks_in_legend_order(task, rows) | {CEILING: ZERO}
    ceiling = pd.DataFrame([{"panel": panel, "axis_value": end, "value": end} for panel in titles for end in ends])
    ceiling = ceiling.assign(contestant=CEILING, kind="baseline", band=False)
    frame = pd.concat([ceiling, means.assign(band=means["runs"] > 1)])
    frame = frame.reindex(columns=["contestant", "run", "kind", "value", "low", "high", "axis_value", "panel", "band"])
    frame = frame.assign(
        label=frame["contestant"],
        series=frame["contestant"],
        sparse=frame["contestant"] != CEILING,
        width=[looks[name].width for name in frame["contestant"]],
    ).sort_values(["contestant", "axis_value"], ignore_index=True)
    highest = float(np.nanmax(means["value"].astype(float)))
    axes = curves.Axes(
        "contexts",
        "rank",
        ends,
        (0.9, 1.15 * max(highest, 2.0)),
        log_y=True,
        field="axis_value",
        x_name="contexts",
        band_name="range over seeds",
        log_x=True,
        ticks=tuple(sorted(float(m) for m in means["axis_value"].unique())),
    )
    bands = "; bands: range over seeds" if (means["runs"] > 1).any() else ""
    return learning.panel_figure(
        frame,
        titles,
        axes,
        looks,
        name=f"{task.id}-{slug('rank', shift)}",
        title=f"{task.task}: rank of the predictions ({shift_title(shift)})",
        caption="Rank of the matrix of predictions (contexts × queries) against the number of contexts "
        f"({shift_title(shift)}). Dotted line: the largest possible rank{bands}.",
        alt=f"{task.task}: rank of the predictions of {learning.name_list(looks)} against the number of contexts",
    )


def _panels(rows: pd.DataFrame) -> list[str]:
    """The title of the panel of each row: its metric and, if they differ, its number of examples."""
    has_sizes = len(rows["n_context"].unique()) > 1
    labels = [metric(str(name)).label for name in rows["metric"]]
    return [
        f"{label}, {n} examples" if has_sizes else label for label, n in zip(labels, rows["n_context"], strict=True)
    ]
