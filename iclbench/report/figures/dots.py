"""Dots with intervals, a row per name: means, single draws behind them, and levels to hold them against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import layer, records
from iclbench.report.figures.marks import HIGHLIGHT, Marks, lit
from iclbench.report.style import CONFIG, Look

# `part` is mean (a disc with its interval), draw (a small dot behind it) or level (a dashed rule across the panel).
COLUMNS = ["panel", "part", "row", "contestant", "run", "value", "low", "high", "note"]
STEP = 19


@dataclass(frozen=True)
class Scale:
    """The axis of values: its title, its range, whether it marks zero, and whether it is logarithmic."""

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
    """One panel per title.

    Args:
        name: of the figure.
        title: of the figure.
        caption: of the figure.
        data: a row per mark, with `COLUMNS`.
        panels: titles, in order; the column `panel` names them.
        rows: names on the y axis, from the top; the column `row` names them.
        looks: of all contestants and levels in the data.
        scale: of the x axis.
    """
    drawn = data[COLUMNS].reset_index(drop=True)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}
    height = STEP * len(rows)
    size = {"width": 460 if len(panels) == 1 else 260, "height": height}

    def printed() -> dict[str, Any]:
        layers = _layers(looks, rows, scale, legend=len(looks) > 1)
        views = [
            size | {"title": panel, "layer": layers, "data": {"values": records(drawn[drawn["panel"] == panel])}}
            for panel in panels
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "concat": views, "columns": 3}

    def shown() -> dict[str, Any]:
        layers = _layers(looks, rows, scale, legend=False)
        as_it_is = {"height": height, "usermeta": {"height": "as it is"}}
        return shared | {"data": {"name": "rows"}, "width": "container", "layer": layers} | as_it_is

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: {scale.title} of {', '.join(looks)}; panels: {'; '.join(panels)}.",
        data=drawn,
        printed=printed,
        shown=shown,
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
    # No sorting of the y axis by a level, which has no row of its own.
    level = (
        part("level")
        .mark_rule(strokeDash=[2, 3], strokeWidth=1.6)
        .encode(x=x(), color=colour, opacity=lit(1.0), tooltip=tooltip)
    )
    charts = [
        level,
        part("draw")
        .mark_point(filled=True, size=26, clip=True)
        .encode(x=x(), y=y, color=colour, opacity=lit(0.4), tooltip=tooltip),
        mean.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.6, clip=True)
        .encode(x=x("low"), x2=alt.X2("high"), y=y, color=colour, opacity=lit(0.9)),
        mean.mark_point(filled=True, size=62).encode(x=x(), y=y, color=colour, opacity=lit(1.0), tooltip=tooltip),
    ]
    if scale.zero_rule:
        zero = alt.Chart().transform_aggregate(rows="count()").mark_rule(color="#555", strokeWidth=1.1)
        charts.insert(0, zero.encode(x=alt.XDatum(0)))
    return [layer(chart) for chart in charts]
