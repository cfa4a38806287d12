"""Accuracy or score of models against the size of the state, for backbones that were trained with states of several
sizes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from iclbench.analysis.slices import is_branch
from iclbench.core.formats import integer
from iclbench.core.metrics import metric
from iclbench.report.blocks import Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.sections.pareto import STATE, cost_rows

# The measures of the y axis: the first one with values is drawn.
_MEASURES = ("accuracy", "score")
# States that differ by a smaller factor have the same size: a search for a size may deviate by 10 %.
_LEAST_RATIO = 1.25
# Factor between the edges of the x axis and the outermost states.
_X_MARGIN = 1.3
_KEYS = ["contestant", "shift", "variant"]


def section(task: Slice) -> Section | None:
    points = state_points(task)
    sizes = points.groupby("contestant")["state_bytes"].agg(lambda sizes: sizes.max() / sizes.min())
    if not (sizes >= _LEAST_RATIO).any():
        return None
    return Section(f"{task.id}-state-sizes", "Size of the state", (_figure(task, points),))


def state_points(task: Slice) -> pd.DataFrame:
    """A row per run and shift, with the size of the run's state after `n_points` points (`pareto.STATE`).

    Only shifts that do not change the number of points, and on which backbones have a value, are included. The column
    `contestant` is the backbone, `variant` is the contestant with this size, and `state_bytes` is the size per episode.
    """
    rows = task.rows
    is_summary = rows["axis"].isna() & rows["n_context"].isna() & rows["n_related"].isna() & rows["status"].eq("ok")
    is_result = rows["kind"].eq("backbone") & rows["trained_on"].isna() & rows["method"].isna()
    rows = rows[is_summary & is_result & ~rows["shift"].isin(list(task.extrapolations)) & ~is_branch(rows)]
    measures = [name for name in _MEASURES if rows["metric"].eq(name).any()]
    rows = rows[rows["metric"].eq(measures[0] if measures else "")]
    sizes = cost_rows(task.costs, STATE).drop_duplicates("run")[["run", "value", "n_points"]]
    points = rows.assign(variant=rows["contestant"], contestant=rows["backbone"]).drop(
        columns="n_points", errors="ignore"
    )
    points = points.merge(sizes.rename(columns={"value": "state_bytes"}), on="run")
    columns = [*_KEYS, "metric", "run", "n_points", "state_bytes", "value"]
    return points.astype({"state_bytes": float, "value": float})[columns]


def _figure(task: Slice, points: pd.DataFrame) -> Figure:
    """A panel per shift: a line per backbone through the means over seeds, and a point per run."""
    looks = task.results.backbone_looks(points["contestant"].unique())
    means = points.groupby(_KEYS, as_index=False)[["state_bytes", "value"]].mean()
    data = learning.means_and_points(means, points.assign(series=points["run"]), looks)
    shifts = sorted(points["shift"].unique(), key=lambda shift: (shift != "none", shift))
    data = data.assign(
        label=[
            f"{name}, {integer(size)} bytes" for name, size in zip(data["variant"], data["state_bytes"], strict=True)
        ],
        panel=data["shift"].replace("none", "training distribution"),
    )
    measure = metric(str(points["metric"].iloc[0]))
    low, high = points["state_bytes"].min() / _X_MARGIN, points["state_bytes"].max() * _X_MARGIN
    # Ticks at powers of two, at most about eight.
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    ticks = tuple(2.0**power for power in range(first, last + 1, 1 + (last - first) // 8))
    axes = curves.Axes(
        f"bytes of the state after {integer(points['n_points'].max())} {task.noun}",
        measure.label,
        (low, high),
        curves.domain(data, measure),
        field="state_bytes",
        x_name="bytes",
        log_x=True,
        ticks=ticks,
    )
    looks = learning.sorted_by_line_ends(looks, data, "state_bytes")
    return learning.panel_figure(
        data.sort_values(["panel", "contestant", "sparse", "state_bytes"], ignore_index=True)[
            [*curves.COLUMNS, "run", "state_bytes", "panel"]
        ],
        ["training distribution" if shift == "none" else shift for shift in shifts],
        axes,
        looks,
        name=f"{task.id}-state-sizes",
        title=f"{measure.label} by size of the state",
        caption=f"{measure.label.capitalize()} against the size of the state that a model stores per episode. "
        "Lines: means over seeds of one model with several state sizes; points: runs.",
        alt=f"{measure.label} of {learning.name_list(looks)} against the size of the state",
    )
