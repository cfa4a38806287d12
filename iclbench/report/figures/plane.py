"""Figure of accuracy in context against accuracy in weights (CoQE, figure 4), after and during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import layer, records
from iclbench.report.figures.marks import HIGHLIGHT, Marks, highlighted_opacity
from iclbench.report.style import CONFIG, Look

COLUMNS = [
    "panel",
    "part",
    "contestant",
    "run",
    "task",
    "step",
    "iwl",
    "icl",
    "iwl_low",
    "iwl_high",
    "icl_low",
    "icl_high",
    "note",
]
# The shape of peaks, which differs from the shapes of contestants.
STAR = "M0,-1L.23,-.31L.95,-.31L.36,.12L.59,.81L0,.38L-.59,.81L-.36,.12L-.95,-.31L-.23,-.31Z"
MARKS_CAPTION = (
    "Accuracy in context (ICL) against accuracy in weights (IWL) of trained models, mean and range over seeds. Faint "
    "lines: the course of training; stars: its highest mean ICL accuracy;"
)


def figure(
    name: str, title: str, caption: str, data: pd.DataFrame, panels: Sequence[str], looks: Mapping[str, Look]
) -> Figure:
    """A figure with one panel per title.

    Args:
        name: name of the figure.
        title: title of the figure.
        caption: caption, which follows the description of the marks.
        data: a row per mark, with `COLUMNS`; `part` is path, final, peak or level, and `note` is the label of a point.
        panels: titles in order, values of the column `panel`.
        looks: looks of all contestants and horizontal lines in the data.
    """
    rows = data[COLUMNS].reset_index(drop=True)
    bottom = min(0.4, float(rows[["icl", "icl_low"]].min().min()))
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}
    size = {"width": 420, "height": 380} if len(panels) == 1 else {"width": 270, "height": 250}

    def make_static() -> dict[str, Any]:
        layers = _layers(looks, max(0.0, bottom - 0.02), legend=True)
        views = [
            size | {"title": panel, "layer": layers, "data": {"values": records(rows[rows["panel"] == panel])}}
            for panel in panels
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "concat": views, "columns": 3}

    def make_live() -> dict[str, Any]:
        layers = _layers(looks, max(0.0, bottom - 0.02), legend=False)
        return shared | {"data": {"name": "rows"}, "width": "container", "height": 380, "layer": layers}

    return Figure(
        name=name,
        title=title,
        caption=f"{MARKS_CAPTION} {caption}",
        alt=f"{title}: accuracy on ICL against accuracy on IWL of {', '.join(looks)}; panels: {'; '.join(panels)}.",
        data=rows,
        make_static=make_static,
        make_live=make_live,
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        legend=looks,
        columns=min(len(panels), 3),
        shows_shapes=True,
    )


def _layers(looks: Mapping[str, Look], bottom: float, legend: bool) -> list[dict[str, Any]]:
    marks = Marks(looks, legend, "circle")
    colour, dash = marks.colour, marks.dash

    def x(field: str = "iwl") -> alt.X:
        scale = alt.Scale(domain=[0, 1], nice=False, clamp=True)
        return alt.X(field, type="quantitative", title="IWL accuracy", scale=scale, axis=alt.Axis(tickCount=5))

    def y(field: str = "icl") -> alt.Y:
        scale = alt.Scale(domain=[bottom, 1], nice=False, zero=False, clamp=True)
        return alt.Y(field, type="quantitative", title="ICL accuracy", scale=scale, axis=alt.Axis(tickCount=6))

    def part(name: str) -> alt.Chart:
        return alt.Chart().transform_filter(f"datum.part === '{name}'")

    path, final, peak = part("path"), part("final"), part("peak")
    series = alt.Detail(["contestant", "task"], type="nominal")
    name = "datum.contestant + ' on ' + datum.task"
    values = "'ICL': format(datum.icl, '.3f'), 'IWL': format(datum.iwl, '.3f')"
    final_tooltip = alt.TooltipValue(alt.ExprRef(f"{{'contestant': {name}, {values}}}"))
    peak_tooltip = alt.TooltipValue(alt.ExprRef(f"{{'highest ICL of': {name}, 'at step': datum.step, {values}}}"))
    level = (
        part("level")
        .mark_rule(strokeWidth=1.4)
        .encode(y=y(), color=colour, strokeDash=dash, opacity=highlighted_opacity(1.0))
    )
    path_line = path.mark_line(strokeWidth=1.3)
    path_points = path.mark_point(filled=True, size=9)
    spread = final.mark_rule(strokeWidth=1.4)
    # Names are to the right of their point, and to its left near the right edge.
    right, left = final.transform_filter("datum.iwl <= 0.7"), final.transform_filter("datum.iwl > 0.7")
    labels = [
        right.mark_text(align="left", baseline="middle", dx=8, fontSize=10),
        left.mark_text(align="right", baseline="middle", dx=-8, fontSize=10),
    ]
    charts = [
        level,
        path_line.encode(
            x=x(),
            y=y(),
            color=colour,
            detail=series,
            order=alt.Order("step", type="quantitative"),
            opacity=highlighted_opacity(0.4),
        ),
        path_points.encode(x=x(), y=y(), color=colour, opacity=highlighted_opacity(0.45)),
        spread.encode(x=x("iwl_low"), x2=alt.X2("iwl_high"), y=y(), color=colour, opacity=highlighted_opacity(0.9)),
        spread.encode(x=x(), y=y("icl_low"), y2=alt.Y2("icl_high"), color=colour, opacity=highlighted_opacity(0.9)),
        peak.mark_point(shape=STAR, size=90, strokeWidth=1.8, filled=False).encode(
            x=x(), y=y(), color=colour, opacity=highlighted_opacity(1.0), tooltip=peak_tooltip
        ),
        final.mark_point(size=85, strokeWidth=1.8).encode(
            x=x(), y=y(), **marks.points, opacity=highlighted_opacity(1.0), tooltip=final_tooltip
        ),
        *(
            label.encode(
                x=x(), y=y(), color=colour, text=alt.Text("note", type="nominal"), opacity=highlighted_opacity(1.0)
            )
            for label in labels
        ),
    ]
    return [layer(chart) for chart in charts]
