"""Figures of scores on target points (question `targets`) against the number of related datasets or context points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from iclbench.core.metrics import Metric, metric
from iclbench.report.blocks import Figure
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.style import BACKGROUND, Look
from iclbench.tables.means import means_over_seeds


@dataclass(frozen=True)
class XAxis:
    """The x axis.

    Attributes:
        field: column of the rows.
        title: title of the axis.
        value_name: name of the values in tooltips.
        ticks: values of the ticks (default: chosen by Vega-Lite).
        log: whether the axis is logarithmic.
    """

    field: str
    title: str
    value_name: str
    ticks: tuple[float, ...] = ()
    log: bool = False


def related_axis(counts: list[int]) -> XAxis:
    """An axis for the number of related datasets."""
    return XAxis("n_related", "related datasets", "related datasets", tuple(float(n) for n in counts))


def figure(
    task: Slice, panels: Mapping[str, pd.DataFrame], x_axis: XAxis, *, name: str, title: str, caption: str
) -> Figure:
    """A figure with one panel per title, all with the same axes.

    Lines, bands and the order of the legend are as in `learning.figure`.

    Args:
        task: slice of the figure.
        panels: rows of single runs for each panel, with one metric and the columns of `Slice.targets_by_run` and of the
            x axis.
        x_axis: the x axis.
        name: name of the figure, to which the name of the slice is added.
        title: title of the figure.
        caption: caption, to which a description of the marks is added.
    """
    rows = pd.concat(panels.values(), ignore_index=True)
    keys = dict.fromkeys(["metric", "kind", "contestant", "n_related", x_axis.field, "level", "note"])
    complete_panels = {panel: _complete_rows(task, frame) for panel, frame in panels.items()}
    if is_crowded := learning.has_many_backbones(rows):
        # If every backbone has a failed run, single runs are drawn, so that the figure is not empty.
        panels = complete_panels if learning.has_backbones(complete_panels) else panels
    means = {
        panel: means_over_seeds(frame, [key for key in keys if key in frame])
        for panel, frame in complete_panels.items()
    }
    panels = {panel: learning.with_means(frame, means[panel], seeds=not is_crowded) for panel, frame in panels.items()}
    looks = learning.looks_in_legend_order(task, rows[rows["kind"] != "published"])
    data = pd.concat([_drawn_rows(frame, looks, x_axis).assign(panel=panel) for panel, frame in panels.items()])
    data = data.reset_index(drop=True)
    measure = metric(str(rows["metric"].iloc[0]))
    axes = curves.Axes(
        x_axis.title,
        f"{measure.label} ({measure.unit} per target)" if measure.unit else measure.label,
        curves.extent(data[x_axis.field]),
        _domain(data, measure),
        field=x_axis.field,
        x_name=x_axis.value_name,
        band_name="band",
        log_x=x_axis.log,
        ticks=x_axis.ticks,
    )
    looks = learning.sorted_by_line_ends(looks, data, x_axis.field)
    alt = f"{title}: {measure.label} of {learning.name_list(looks)} against {x_axis.title}"
    return learning.panel_figure(
        data,
        list(panels),
        axes,
        looks,
        name=f"{task.id}-{name}",
        title=title,
        caption=caption + _mark_descriptions(data, looks),
        alt=alt,
    )


def _complete_rows(task: Slice, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of contestants without failed runs."""
    rows = rows.reset_index(drop=True)
    is_published = rows["kind"].eq("published")
    # Horizontal lines repeat scores without related datasets.
    scores = rows.assign(n_related=rows["n_related"].mask(rows["level"], 0)) if "level" in rows else rows
    return rows[is_published | rows.index.isin(task.complete_targets(scores[~is_published]).index)]


def _drawn_rows(rows: pd.DataFrame, looks: Mapping[str, Look], x_axis: XAxis) -> pd.DataFrame:
    """The rows in drawing order, backbones on top, with the columns of lines and tooltips."""
    rows = learning.with_look_columns(rows[rows["contestant"].isin(list(looks))], looks, x_axis.field)
    return rows.assign(
        label=rows["label"] + rows["note"].fillna("") if "note" in rows else rows["label"],
        sparse=(rows["kind"] != "published") & ~rows.get("level", pd.Series(False, index=rows.index)),
    )[[*curves.COLUMNS, "band", x_axis.field]]


def _domain(data: pd.DataFrame, measure: Metric) -> tuple[float, float]:
    """The y range of backbones, oracles and published numbers; baselines outside it are drawn at its edge."""
    main_rows = data[data["kind"] != "baseline"]
    return curves.domain(main_rows if (main_rows["kind"] == "backbone").any() else data, measure)


def _mark_descriptions(data: pd.DataFrame, looks: Mapping[str, Look]) -> str:
    parts = learning.band_descriptions(data)
    if (data["kind"] == "published").any():
        parts.append("diamonds: published numbers")
    if BACKGROUND in looks.values():
        parts.append("grey: other baselines")
    return learning.caption_sentence(parts)
