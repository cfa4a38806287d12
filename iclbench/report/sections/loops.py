"""Errors of looped models against the number of iterations at evaluation."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.loops import loop_values
from iclbench.core.metrics import Metric, metric
from iclbench.report.blocks import Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.titles import IN_DISTRIBUTION

_KEYS = ["contestant", "shift", "loops"]
# Factor between the edges of the x axis and the outermost numbers of loops.
_X_MARGIN = 1.2


def section(task: Slice) -> Section | None:
    points = loop_values(task.rows).rename(columns={"axis_value": "loops"}).astype({"loops": float, "value": float})
    points = task.without_diverged(points[~points["shift"].isin(list(task.extrapolations))])
    if points.empty:
        return None
    measure = metric(str(points["metric"].iloc[0]))
    figure = _figure(task, points[points["metric"].eq(measure.name)], measure)
    return Section(f"{task.id}-loops", "Number of loops", (figure,))


def _figure(task: Slice, points: pd.DataFrame, measure: Metric) -> Figure:
    """A panel per shift: a line per looped model through the means over seeds, a point per run, and a level line for
    each contestant to compare with."""
    low, high = points["loops"].min() / _X_MARGIN, points["loops"].max() * _X_MARGIN
    levels = _levels(task, points, measure)
    looks = {str(name): task.looks[name] for name in pd.concat([points, levels])["contestant"].unique()}
    means = points.groupby(_KEYS, as_index=False)[["value"]].mean()
    # Each point is a separate series, so that runs are drawn without lines.
    series = [f"{run} {loops:g}" for run, loops in zip(points["run"], points["loops"], strict=True)]
    curve_rows = learning.means_and_points(means, points.assign(series=series), looks)
    level_rows = levels.merge(pd.DataFrame({"loops": [low, high]}), how="cross").assign(
        run=lambda rows: rows["contestant"],
        series=lambda rows: rows["contestant"],
        width=lambda rows: [looks[name].width for name in rows["contestant"]],
        sparse=False,
    )
    data = pd.concat([curve_rows, level_rows], ignore_index=True)
    data = data.assign(label=data["run"], panel=data["shift"].replace("none", IN_DISTRIBUTION))
    axes = curves.Axes(
        "iterations at evaluation",
        measure.label,
        (low, high),
        curves.domain(data, measure),
        field="loops",
        x_name="iterations",
        log_x=True,
        ticks=tuple(sorted(points["loops"].unique())),
    )
    looks = learning.sorted_by_line_ends(looks, data, "loops")
    data = data.sort_values(["panel", "contestant", "sparse", "loops"], ignore_index=True)
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", "loops", "panel"]],
        sorted(data["panel"].unique(), key=lambda panel: (panel != IN_DISTRIBUTION, panel)),
        axes,
        looks,
        name=f"{task.id}-loops",
        title=f"{task.task}: {measure.label} by number of loops",
        caption=f"{measure.label.capitalize()} of looped models by the number of iterations at evaluation. "
        "Lines: means over seeds; points: runs; level lines: contestants without loops.",
        alt=f"{measure.label} of {learning.name_list(looks)} against the number of iterations",
    )


def _levels(task: Slice, points: pd.DataFrame, measure: Metric) -> pd.DataFrame:
    """The means of the contestants to compare with: models of the same backbones without loops, the oracles and, in a
    task without oracles, the best baseline."""
    rows = task.summaries
    rows = rows[rows["metric"].eq(measure.name) & rows["shift"].isin(points["shift"].unique())]
    backbones = task.rows.drop_duplicates("contestant").set_index("contestant")["backbone"]
    is_variant = rows["contestant"].map(backbones).isin(points["backbone"].unique())
    is_variant &= rows["kind"].eq("backbone") & ~rows["contestant"].isin(points["contestant"])
    is_ceiling = rows["kind"].eq("oracle")
    if not is_ceiling.any():
        errors = rows[rows["kind"].eq("baseline")].groupby("contestant")["value"].mean()
        is_ceiling = rows["contestant"].isin(errors.sort_values(ascending=measure.lower_is_better).index[:1])
    levels = rows.loc[is_variant | is_ceiling, ["contestant", "kind", "shift", "value"]]
    return levels.assign(low=float("nan"), high=float("nan"))
