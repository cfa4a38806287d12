"""Lines over a number of examples (or steps): the drawing that learning curves, extrapolation and shifts share.

Backbones carry bands of their 95 % intervals. The tooltip shows the point nearest to the pointer. A parameter
`highlight` holds the contestant that the page's legend has picked; everybody else then fades.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode

from iclbench.core.metrics import Metric
from iclbench.report.blocks import Specification
from iclbench.report.figures.marks import HIGHLIGHT, Marks, lit
from iclbench.report.style import CONFIG, Look

OTHERS = "other baselines"
PER_ROW = 3
# What the layers read of every row, besides the column on the x axis: `label` is the tooltip's name, `series` tells
# lines apart, `width` is the look's, `sparse` asks for dots; `band`, where it is, says which backbones
# have bands.
COLUMNS = ("contestant", "kind", "value", "low", "high", "label", "series", "width", "sparse")


@dataclass(frozen=True)
class Axes:
    """Titles and ranges: `range` of x, `domain` of y (values beyond lie on its edge); `log` and `log_x`: which axes are
    logarithmic; `rule`: rows say in `trained` where dashed rules stand; `unit` is the tooltip's word for `field`,
    `band` for low to high; `ticks`: the values marked on x, where they are few."""

    x: str
    y: str
    range: tuple[float, float]
    domain: tuple[float, float]
    log: bool = False
    rule: bool = False
    field: str = "n_context"
    unit: str = "examples"
    band: str = "interval"
    log_x: bool = False
    ticks: tuple[float, ...] = ()


def specifications(
    panels: Sequence[tuple[str, pd.DataFrame]], axes: Axes, looks: Mapping[str, Look]
) -> tuple[Specification, Specification]:
    """What builds the two specifications of one figure, made of the same layers.

    The static one is complete, with the rows and the title of every panel. The live one has no data: it draws the data
    set `rows`, as wide as its container, and adds the tooltip; its legend is the page's business.
    """
    # Values beyond the y axis lie on its edge, so only x can leave the panel. A clip path that is not needed would cost
    # every line a layer of its own when the figure is printed: most of the time of a report.
    clip = any(not data[axes.field].dropna().between(*axes.range).all() for _, data in panels)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def printed() -> dict[str, Any]:
        with debug_mode(False):  # the tests validate; here it would take most of the time
            drawing = _Drawing(axes, looks, True, clip)
            layers = [*drawing.lines(), *drawing.rule()]
        width, height = {1: (560, 340), 2: (400, 300)}.get(len(panels), (260, 220))
        size = {"width": width, "height": height}
        views = [{"title": title, "data": {"values": records(data)}, "layer": layers} | size for title, data in panels]
        one_or_all = views[0] if len(views) == 1 else {"concat": views, "columns": PER_ROW}
        return shared | {"$schema": alt.SCHEMA_URL} | one_or_all

    def shown() -> dict[str, Any]:
        with debug_mode(False):
            drawing = _Drawing(axes, looks, False, clip)
            layers = [*drawing.lines(), drawing.nearest_point(), *drawing.rule()]
        return shared | {"data": {"name": "rows"}, "width": "container", "height": 300, "layer": layers}

    return printed, shown


def records(data: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain Python values; what is missing or infinite becomes None."""
    columns = {str(name): _plain(data[name]) for name in data.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(column: pd.Series) -> list[Any]:
    missing = column.isna().to_numpy()
    if pd.api.types.is_float_dtype(column):
        missing = missing | ~np.isfinite(column.to_numpy(float, na_value=np.nan))
    return [None if gone else value for value, gone in zip(column.tolist(), missing, strict=True)]


def spans_a_decade(data: pd.DataFrame) -> bool:
    """Whether the positive values of the backbones (of everybody, if there are none) differ by a factor of ten."""
    own = data.loc[data["kind"] == "backbone", "value"]
    values = (own if len(own) else data["value"]).astype(float).replace([np.inf, -np.inf], np.nan).dropna()
    values = values[values > 0]
    return not values.empty and bool(values.max() >= 10 * values.min())


def domain(data: pd.DataFrame, metric: Metric) -> tuple[float, float]:
    """The range of the y axis: what the backbones need, and the part of the baselines that lies near.

    Least squares can reach 1e-20 or peak at 100 on the same axis: the axis follows the backbones (everybody, if there
    are none) and gives the others a factor of five, on a linear axis of errors one and a half.
    """
    values = data["value"].astype(float).replace([np.inf, -np.inf], np.nan).dropna()
    of_backbones = values[data.loc[values.index, "kind"] == "backbone"]
    lead = of_backbones if len(of_backbones) else values
    if lead.empty:
        return (0.1, 1.0) if metric.logarithmic else (0.0, 1.0)
    if not metric.logarithmic and metric.lower_is_better and (values >= 0).all():
        return 0.0, 1.05 * min(float(values.max()), 1.5 * float(lead.max())) or 1.0
    if not metric.logarithmic:
        low, high = float(values.quantile(0.01)), float(values.quantile(0.99))
        low, high = min(low, float(lead.min())), max(high, float(lead.max()))
        margin = 0.05 * (high - low) or 0.5
        return low - margin, high + margin
    positive = values[values > 0]
    if positive.empty:
        return 0.1, 1.0
    smallest = float(lead[lead > 0].min()) if (lead > 0).any() else 1e-3
    if of_backbones.empty:
        smallest = max(smallest, 1e-4)
    largest = float(lead.max())
    low = max(float(positive.min()), smallest / 5)
    high = min(float(positive.max()), 5 * max(largest, smallest))
    return 10 ** (np.floor(4 * np.log10(low)) / 4), 10 ** (np.ceil(4 * np.log10(high * 1.02)) / 4)


class _Drawing:
    """The layers of one chart: encodings that all of them share, and a method per kind of mark."""

    def __init__(self, axes: Axes, looks: Mapping[str, Look], legend: bool, clip: bool) -> None:
        self.axes, self.looks, self.clip = axes, looks, clip
        marks = Marks(looks, legend)
        self.colour, self.dash = marks.colour, marks.dash
        self.series = alt.Detail("series", type="nominal")
        self.x = alt.X(
            axes.field,
            type="quantitative",
            title=axes.x,
            scale=alt.Scale(domain=list(axes.range), nice=False, **({"type": "log"} if axes.log_x else {})),
            axis=_ticks(axes),
        )

    def y(self, field: str = "value") -> alt.Y:
        kind = {"type": "log"} if self.axes.log else {"type": "linear", "zero": False}
        scale = alt.Scale(**kind, domain=list(self.axes.domain), clamp=True, nice=False)
        axis = alt.Axis(format="~g", tickCount=6)
        return alt.Y(field, type="quantitative", title=self.axes.y, scale=scale, axis=axis)

    def lines(self) -> list[dict[str, Any]]:
        """Bands of the backbones, a line each, dots where a line has few points, diamonds for published numbers."""
        chart, shared = alt.Chart(), {"x": self.x, "color": self.colour}
        plain = {"y": self.y(), "opacity": lit(1.0, 0.12)} | shared
        band = chart.transform_filter(
            "datum.kind === 'backbone' && datum.low !== null && datum.band !== false"
        ).mark_area(clip=self.clip)
        layers = [
            band.encode(y=self.y("low"), y2=alt.Y2("high"), detail=self.series, opacity=lit(0.18, 0.02), **shared)
        ]
        # One layer per width, as a scale of widths would need an ordered field. No expression ever holds a name:
        # whatever users call their contestants, it stays valid.
        for width in sorted({look.width for look in self.looks.values()}):
            wide = chart.transform_filter(f"datum.kind !== 'published' && datum.width === {width}")
            line = wide.mark_line(clip=self.clip, strokeCap="round", strokeJoin="round", strokeWidth=width)
            layers.append(line.encode(strokeDash=self.dash, detail=self.series, **plain))
        dots = chart.transform_filter("datum.sparse").mark_point(filled=True, size=16, clip=self.clip)
        theirs = chart.transform_filter("datum.kind === 'published'")
        diamonds = theirs.mark_point(shape="diamond", size=90, strokeWidth=2, filled=False)
        return [layer(chart) for chart in (*layers, dots.encode(**plain), diamonds.encode(**plain))]

    def nearest_point(self) -> dict[str, Any]:
        """The point nearest to the pointer, with its tooltip."""
        nearest = alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")
        # Spelt out, because Vega-Lite reads text fields from the wrong object where `nearest` is set.
        row = "(datum.datum || datum)"
        ends = f"format({row}.low, '.4~g') + ' to ' + format({row}.high, '.4~g')"
        content = (
            f"{{'contestant': {row}.label, '{self.axes.unit}': {row}.{self.axes.field},"
            f" 'value': format({row}.value, '.4~g'), '{self.axes.band}': isValid({row}.low) ? {ends} : 'none'}}"
        )
        tooltip = alt.TooltipValue(alt.ExprRef(content))
        mark = alt.Chart().mark_point(filled=True, size=70, clip=self.clip).add_params(nearest)
        shown = alt.OpacityValue(0, condition={"param": "hover", "value": 1, "empty": False})
        return layer(mark.encode(x=self.x, y=self.y(), color=self.colour, tooltip=tooltip, opacity=shown))

    def rule(self) -> list[dict[str, Any]]:
        """A dashed rule at every trained number of examples in the panel."""
        if not self.axes.rule:
            return []
        x = alt.X("trained", type="quantitative")
        chart = alt.Chart().transform_filter("isValid(datum.trained)")
        chart = chart.transform_aggregate(groupby=["trained"], rows="count()")
        line = chart.mark_rule(strokeDash=[5, 4], color="#555", strokeWidth=1.2).encode(x=x)
        label = chart.transform_calculate(text="'trained: ' + datum.trained")
        label = label.mark_text(align="left", baseline="top", dx=4, dy=2, fontSize=11, color="#444")
        label = label.encode(x=x, y=alt.YValue(0), text=alt.Text("text", type="nominal"))
        return [layer(chart) for chart in (line, label)]


def extent(values: pd.Series) -> tuple[float, float]:
    """The range of the x axis; one wide where there is a single value."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(axes: Axes) -> alt.Axis:
    if axes.ticks:
        return alt.Axis(values=list(axes.ticks), format="~g")
    return alt.Axis(tickCount=8, **({"format": "~e"} if axes.log_x else {}))


def layer(chart: alt.Chart) -> dict[str, Any]:
    """One layer without what belongs to the whole, not validated (the tests do that)."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    return {key: value for key, value in spec.items() if key not in ("$schema", "config", "data", "datasets")}
