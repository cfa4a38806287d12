"""Figures of points with intervals, with a row per name: means, single values behind them, and reference levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import layer, records
from iclbench.report.figures.marks import HIGHLIGHT, Marks, highlighted_opacity
from iclbench.report.style import CONFIG, Look

# `part` is mean (a point with its interval), draw (a small point behind it) or level (a dashed rule across the panel).
COLUMNS = ["panel", "part", "row", "contestant", "run", "value", "low", "high", "note"]
# Height of a row in pixels.
ROW_HEIGHT = 19


@dataclass(frozen=True)
class Scale:
    """The x axis.

    Attributes:
        title: title of the axis.
        domain: lowest and highest value.
        zero_rule: whether a rule marks zero.
        log: whether the axis is logarithmic.
    """

    title: str
    domain: tuple[float, float]
    zero_rule: bool = False
    log: bool = False


def figure(
    name: str,
    title: str,
    caption: str,
    data: pd.DataFrame,
    panels: Sequence[str],
    rows: Sequence[str],
    looks: Mapping[str, Look],
    scale: Scale,
) -> Figure:
    """A figure with one panel per title.

    Args:
        name: name of the figure.
        title: title of the figure.
        caption: caption of the figure.
        data: a row per mark, with `COLUMNS`.
        panels: titles in order, values of the column `panel`.
        rows: names on the y axis from the top, values of the column `row`.
        looks: looks of all contestants and levels in the data.
        scale: the x axis.
    """
    marks = data[COLUMNS].reset_index(drop=True)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}
    height = ROW_HEIGHT * len(rows)
    size = {"width": 460 if len(panels) == 1 else 260, "height": height}

    def make_static() -> dict[str, Any]:
        layers = _layers(looks, rows, scale, legend=len(looks) > 1)
        views = [
            size | {"title": panel, "layer": layers, "data": {"values": records(marks[marks["panel"] == panel])}}
            for panel in panels
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "concat": views, "columns": 3}

    def make_live() -> dict[str, Any]:
        layers = _layers(looks, rows, scale, legend=False)
        fixed_height = {"height": height, "usermeta": {"height": "as it is"}}
        return shared | {"data": {"name": "rows"}, "width": "container", "layer": layers} | fixed_height

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: {scale.title} of {', '.join(looks)}; panels: {'; '.join(panels)}.",
        data=marks,
        make_static=make_static,
        make_live=make_live,
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        legend=looks,
        columns=min(len(panels), 3),
    )


def _layers(looks: Mapping[str, Look], rows: Sequence[str], scale: Scale, legend: bool) -> list[dict[str, Any]]:
    marks = Marks(looks, legend, "circle")
    colour = marks.colour
    axis = alt.Axis(title=None, labelLimit=150, labelFontSize=11, grid=True, labelOverlap=False)
    y = alt.Y("row", type="nominal", scale=alt.Scale(domain=list(rows)), axis=axis)

    def x(field: str = "value") -> alt.X:
        kind: dict[str, Any] = {"type": "log"} if scale.log else {"zero": False}
        bounds = alt.Scale(domain=list(scale.domain), nice=False, clamp=True, **kind)
        return alt.X(field, type="quantitative", title=scale.title, scale=bounds, axis=alt.Axis(tickCount=5))

    def part(name: str) -> alt.Chart:
        return alt.Chart().transform_filter(f"datum.part === '{name}'")

    ends = "isValid(datum.low) ? format(datum.low, '.3f') + ' to ' + format(datum.high, '.3f') : 'none'"
    fields = (
        f"{{'contestant': datum.contestant, '': datum.note, 'value': format(datum.value, '.3f'), 'interval': {ends}}}"
    )
    tooltip = alt.TooltipValue(alt.ExprRef(fields))
    mean = part("mean")
    # A level has no row, so it has no y encoding.
    level = (
        part("level")
        .mark_rule(strokeDash=[2, 3], strokeWidth=1.6)
        .encode(x=x(), color=colour, opacity=highlighted_opacity(1.0), tooltip=tooltip)
    )
    charts = [
        level,
        part("draw")
        .mark_point(filled=True, size=26, clip=True)
        .encode(x=x(), y=y, color=colour, opacity=highlighted_opacity(0.4), tooltip=tooltip),
        mean.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.6, clip=True)
        .encode(x=x("low"), x2=alt.X2("high"), y=y, color=colour, opacity=highlighted_opacity(0.9)),
        mean.mark_point(filled=True, size=62).encode(
            x=x(), y=y, color=colour, opacity=highlighted_opacity(1.0), tooltip=tooltip
        ),
    ]
    if scale.zero_rule:
        zero = alt.Chart().transform_aggregate(rows="count()").mark_rule(color="#555", strokeWidth=1.1)
        charts.insert(0, zero.encode(x=alt.XDatum(0)))
    return [layer(chart) for chart in charts]
