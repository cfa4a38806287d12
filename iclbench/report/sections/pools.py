"""Distances of models from known solutions, by the number of truths in the pool of the training task."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Figure, Section, Text
from iclbench.report.data import Results
from iclbench.report.figures import curves, learning
from iclbench.tables.evaluators import POOL, SOLUTIONS

_INTRODUCTION = (
    "Models are trained on a pool of M linear functions. The figure shows whether they predict like the posterior mean "
    "over the pool (oracle-pool) or like ridge regression, the optimum for new functions."
)
# The prompts by shift, in the order of the panels.
_PROMPTS = {"none": "pool prompts", "fresh": "fresh prompts"}
# Smaller distances are drawn at this value, since the axis is logarithmic.
_SMALLEST = 1e-6
_KEYS = ["contestant", "metric", "shift", "pool"]


def section(results: Results) -> Section | None:
    distances = pool_distances(results.rows)
    blocks: list[Block] = []
    for (task, preset), rows in distances.groupby(["task", "preset"]):
        if len(rows["pool"].unique()) > 1:
            blocks.append(_figure(str(task), str(preset), rows, results))
    return Section("pools", "Task pools", (Text(_INTRODUCTION), *blocks)) if blocks else None


def pool_distances(rows: pd.DataFrame) -> pd.DataFrame:
    """The distances of single runs on pool prompts and on fresh prompts.

    The column `pool` is the number of truths, infinity for an unlimited pool, whose fresh prompts are also its pool
    prompts. The column `contestant` is the backbone.
    """
    is_distance = rows["evaluator"].eq(SOLUTIONS) & rows["axis"].eq(POOL).fillna(False) & rows["status"].eq("ok")
    distances = rows[is_distance & rows["shift"].isin(list(_PROMPTS))]
    distances = distances.assign(
        contestant=distances["backbone"],
        pool=distances["axis_value"].astype(float).fillna(float("inf")),
        value=distances["value"].astype(float),
    )
    unlimited = distances[distances["pool"].eq(float("inf")) & distances["shift"].eq("fresh")]
    distances = pd.concat([distances, unlimited.assign(shift="none")], ignore_index=True)
    return distances[["task", "preset", *_KEYS, "run", "seed", "value"]]


def _figure(task: str, preset: str, rows: pd.DataFrame, results: Results) -> Figure:
    """A figure with a panel per solution and kind of prompts: a line per model through the means over seeds, and a
    point per run."""
    sizes = sorted(size for size in rows["pool"].unique() if size != float("inf"))
    has_unlimited = len(sizes) < len(rows["pool"].unique())
    # The unlimited pool is drawn at four times the size of the largest limited pool.
    ticks = [*sizes, 4 * sizes[-1]] if has_unlimited and sizes else sizes or [1.0]
    drawn = rows.assign(pool=rows["pool"].clip(upper=ticks[-1]), value=rows["value"].clip(lower=_SMALLEST))
    means = drawn.groupby(_KEYS, as_index=False).agg(value=("value", "mean"))
    all_looks = results.backbone_looks(rows["contestant"].unique())
    # Each point is a separate series, so that runs are drawn without lines.
    points = drawn.assign(series=[f"{run} {size}" for run, size in zip(drawn["run"], drawn["pool"], strict=True)])
    data = learning.means_and_points(means, points, all_looks)
    data = data.assign(
        label=data["run"],
        panel=[_panel(name, shift) for name, shift in zip(data["metric"], data["shift"], strict=True)],
    )
    panels = [_panel(name, shift) for shift in _PROMPTS for name in sorted(rows["metric"].unique())]
    panels = [panel for panel in panels if data["panel"].eq(panel).any()]
    axes = curves.Axes(
        "truths in the pool",
        "squared distance / D",
        (ticks[0] / 1.2, ticks[-1] * 1.2),
        (float(data["value"].min()) / 1.3, float(data["value"].max()) * 1.3),
        log_y=True,
        field="pool",
        x_name="pool",
        log_x=True,
        ticks=tuple(ticks),
        last_label="all" if has_unlimited else "",
    )
    ordered_looks = learning.sorted_by_line_ends(all_looks, data, "pool")
    return learning.panel_figure(
        data.sort_values(["panel", "contestant", "sparse", "pool"], ignore_index=True)[
            [*curves.COLUMNS, "run", "pool", "panel"]
        ],
        panels,
        axes,
        ordered_looks,
        name=f"pools-{slug(task, preset)}",
        title=f"{task}, {preset}: distance from known solutions by size of the pool",
        caption="Squared distance of the predictions from oracle-pool and from ridge, divided by the number of "
        "dimensions, on prompts of the pool and on prompts of new truths. Lines: means over seeds; points: seeds.",
        alt=f"{task}: squared distance of {learning.name_list(ordered_looks)} from known solutions against the number "
        "of truths in the pool",
        columns=2,
    )


def _panel(name: str, shift: str) -> str:
    return f"{metric(name).label.removeprefix('squared distance ')}, {_PROMPTS[shift]}"
