"""Line charts over a number of examples or steps, for learning curves and similar figures.

Bands show the columns `low` and `high` of backbones. The tooltip shows the point nearest to the pointer. A selection in
the page's legend sets the parameter `highlight`, and all other contestants fade.
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
from iclbench.report.blocks import SpecificationBuilder
from iclbench.report.figures.marks import HIGHLIGHT, Marks, highlighted_opacity
from iclbench.report.style import CONFIG, Look

OTHERS = "other baselines"
PANELS_PER_ROW = 3
# Width of the lines of seeds behind their mean.
SEED_WIDTH = 0.8
# A logarithmic axis that shows an oracle ends at most by this factor below the best backbone, because the error of an
# oracle may be 1e-20.
_OPTIMUM_FACTOR = 30
# Columns of the rows in addition to the x axis. `label` is the name in tooltips, `series` identifies a line, `width` is
# the width of the look, and `sparse` adds points. The optional column `band` marks the backbones with bands.
COLUMNS = ("contestant", "kind", "value", "low", "high", "label", "series", "width", "sparse")


@dataclass(frozen=True)
class Axes:
    """The axes of a figure of lines.

    Attributes:
        x: title of the x axis.
        y: title of the y axis.
        range: lowest and highest value of x.
        domain: lowest and highest value of y. Values outside this range are drawn at the edge.
        log_y: whether the y axis is logarithmic.
        has_rule: whether dashed rules mark the values of the column `trained`.
        field: column of x.
        x_name: name of x in tooltips.
        band_name: name of the interval in tooltips.
        log_x: whether the x axis is logarithmic.
        ticks: ticks of the x axis (default: chosen by Vega-Lite).
        last_label: label of the last tick (default: its value).
    """

    x: str
    y: str
    range: tuple[float, float]
    domain: tuple[float, float]
    log_y: bool = False
    has_rule: bool = False
    field: str = "n_context"
    x_name: str = "examples"
    band_name: str = "interval"
    log_x: bool = False
    ticks: tuple[float, ...] = ()
    last_label: str = ""


def specifications(
    panels: Sequence[tuple[str, pd.DataFrame]],
    axes: Axes,
    looks: Mapping[str, Look],
    columns: int = PANELS_PER_ROW,
) -> tuple[SpecificationBuilder, SpecificationBuilder]:
    """Functions that build the static and the live specification of a figure (`Figure.make_static`, `make_live`).

    The static specification has the rows and titles of all panels, and a legend. The live specification draws the data
    set `rows` with tooltips, as wide as its container.
    """
    # Only x values can be outside the panel, because y is clamped. Lines are clipped only if necessary: clipping is
    # slow in pictures, because each line becomes a separate layer.
    clip = any(not data[axes.field].dropna().between(*axes.range).all() for _, data in panels)
    has_seeds = any(data["width"].eq(SEED_WIDTH).any() for _, data in panels)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def make_static() -> dict[str, Any]:
        with debug_mode(False):  # tests validate the specification, which would take most of the time here
            drawing = _Layers(axes, looks, True, clip, has_seeds)
            layers = [*drawing.lines(), *drawing.rule()]
        width, height = {1: (560, 340), 2: (400, 300)}.get(len(panels), (260, 220))
        size = {"width": width, "height": height}
        views = [{"title": title, "data": {"values": records(data)}, "layer": layers} | size for title, data in panels]
        content = views[0] if len(views) == 1 else {"concat": views, "columns": columns}
        return shared | {"$schema": alt.SCHEMA_URL} | content

    def make_live() -> dict[str, Any]:
        with debug_mode(False):
            drawing = _Layers(axes, looks, False, clip, has_seeds)
            layers = [*drawing.lines(), drawing.nearest_point(), *drawing.rule()]
        return shared | {"data": {"name": "rows"}, "width": "container", "height": 300, "layer": layers}

    return make_static, make_live


def records(data: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries of Python values; missing and infinite values become None."""
    columns = {str(name): _python_values(data[name]) for name in data.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _python_values(column: pd.Series) -> list[Any]:
    missing = column.isna().to_numpy()
    if pd.api.types.is_float_dtype(column):
        missing = missing | ~np.isfinite(column.to_numpy(float, na_value=np.nan))
    return [None if is_missing else value for value, is_missing in zip(column.tolist(), missing, strict=True)]


def spans_a_decade(data: pd.DataFrame) -> bool:
    """Whether the positive values of backbones (without backbones, of all contestants) differ by a factor of ten."""
    backbone_values = data.loc[data["kind"] == "backbone", "value"]
    values = (
        (backbone_values if len(backbone_values) else data["value"])
        .astype(float)
        .replace([np.inf, -np.inf], np.nan)
        .dropna()
    )
    values = values[values > 0]
    return not values.empty and bool(values.max() >= 10 * values.min())


def domain(data: pd.DataFrame, metric: Metric) -> tuple[float, float]:
    """The range of the y axis. It covers all backbones, and the oracles and baselines near them.

    The error of least squares, for example, may be 1e-20 or 100. Other contestants are therefore shown only up to a
    factor of 5 beyond the backbones on a logarithmic axis, and up to a factor of 1.5 on a linear axis of errors. On a
    logarithmic axis, an oracle is shown up to a factor of 30 below the best backbone. Without backbones, the range is
    computed from all contestants.
    """
    values = data["value"].astype(float).replace([np.inf, -np.inf], np.nan).dropna()
    kinds = data.loc[values.index, "kind"]
    backbone_values = values[kinds == "backbone"]
    main_values = backbone_values if len(backbone_values) else values
    if main_values.empty:
        return (0.1, 1.0) if metric.logarithmic else (0.0, 1.0)
    optima = values[kinds == "oracle"]
    if not metric.logarithmic and metric.lower_is_better and (values >= 0).all():
        return 0.0, 1.05 * min(float(values.max()), 1.5 * float(main_values.max())) or 1.0
    if not metric.logarithmic:
        low, high = float(values.quantile(0.01)), float(values.quantile(0.99))
        low, high = min(low, float(main_values.min())), max(high, float(main_values.max()))
        if len(optima):
            low = min(low, float(optima.min())) if metric.lower_is_better else low
            high = high if metric.lower_is_better else max(high, float(optima.max()))
        margin = 0.05 * (high - low) or 0.5
        return low - margin, high + margin
    positive = values[values > 0]
    if positive.empty:
        return 0.1, 1.0
    smallest = float(main_values[main_values > 0].min()) if (main_values > 0).any() else 1e-3
    if backbone_values.empty:
        smallest = max(smallest, 1e-4)
    largest = float(main_values.max())
    # An oracle that reaches 0 is drawn at the edge.
    optimum = max(float(optima.min()), smallest / _OPTIMUM_FACTOR) if len(optima) else smallest
    low = max(0.9 * float(positive.min()), min(smallest / 5, 0.9 * optimum))
    high = min(float(positive.max()), 5 * max(largest, smallest))
    return 10 ** (np.floor(4 * np.log10(low)) / 4), 10 ** (np.ceil(4 * np.log10(high * 1.02)) / 4)


class _Layers:
    """The layers of one chart: their common encodings, and a method for each kind of mark."""

    def __init__(self, axes: Axes, looks: Mapping[str, Look], legend: bool, clip: bool, has_seeds: bool) -> None:
        self.axes, self.looks, self.clip, self.has_seeds = axes, looks, clip, has_seeds
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
        kind = {"type": "log"} if self.axes.log_y else {"type": "linear", "zero": False}
        scale = alt.Scale(**kind, domain=list(self.axes.domain), clamp=True, nice=False)
        # Without a number of digits, Vega prints 60 as 6e+1 on an axis with steps of 20.
        axis = alt.Axis(format=".4~g", tickCount=6)
        return alt.Y(field, type="quantitative", title=self.axes.y, scale=scale, axis=axis)

    def lines(self) -> list[dict[str, Any]]:
        """Bands of backbones, lines, points of sparse lines, and diamonds of published numbers."""
        chart, shared = alt.Chart(), {"x": self.x, "color": self.colour}
        point = {"y": self.y(), "opacity": highlighted_opacity(1.0, 0.12)} | shared
        band = chart.transform_filter(
            "datum.kind === 'backbone' && datum.low !== null && datum.band !== false"
        ).mark_area(clip=self.clip)
        layers = [
            band.encode(
                y=self.y("low"),
                y2=alt.Y2("high"),
                detail=self.series,
                opacity=highlighted_opacity(0.18, 0.02),
                **shared,
            )
        ]
        # One layer per width, the thinnest first, because a scale of widths would need an ordered field. Expressions
        # contain no names, because user-defined names may contain any character.
        seed_width = [SEED_WIDTH] * self.has_seeds
        for width in sorted({*seed_width, *(look.width for look in self.looks.values())}):
            rows = chart.transform_filter(f"datum.kind !== 'published' && datum.width === {width}")
            line = rows.mark_line(clip=self.clip, strokeCap="round", strokeJoin="round", strokeWidth=width)
            opacity = highlighted_opacity(0.55, 0.06) if width == SEED_WIDTH else point["opacity"]
            layers.append(line.encode(strokeDash=self.dash, detail=self.series, **point | {"opacity": opacity}))
        dots = chart.transform_filter("datum.sparse").mark_point(filled=True, size=16, clip=self.clip)
        published_points = chart.transform_filter("datum.kind === 'published'")
        diamonds = published_points.mark_point(shape="diamond", size=90, strokeWidth=2, filled=False)
        return [layer(chart) for chart in (*layers, dots.encode(**point), diamonds.encode(**point))]

    def nearest_point(self) -> dict[str, Any]:
        """The point nearest to the pointer, with its tooltip."""
        nearest = alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")
        # With `nearest`, Vega-Lite reads text fields from the wrong object, so the expression selects the right one.
        row = "(datum.datum || datum)"
        ends = f"format({row}.low, '.4~g') + ' to ' + format({row}.high, '.4~g')"
        content = (
            f"{{'contestant': {row}.label, '{self.axes.x_name}': {row}.{self.axes.field},"
            f" 'value': format({row}.value, '.4~g'), '{self.axes.band_name}': isValid({row}.low) ? {ends} : 'none'}}"
        )
        tooltip = alt.TooltipValue(alt.ExprRef(content))
        mark = alt.Chart().mark_point(filled=True, size=70, clip=self.clip).add_params(nearest)
        opacity = alt.OpacityValue(0, condition={"param": "hover", "value": 1, "empty": False})
        return layer(mark.encode(x=self.x, y=self.y(), color=self.colour, tooltip=tooltip, opacity=opacity))

    def rule(self) -> list[dict[str, Any]]:
        """A dashed rule at every training length in the panel, with a label."""
        if not self.axes.has_rule:
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
    """The range of values for an axis; a range of length 1 around a single value."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(axes: Axes) -> alt.Axis:
    if axes.ticks:
        label = f"datum.value === {axes.ticks[-1]} ? '{axes.last_label}' : datum.label"
        return alt.Axis(values=list(axes.ticks), format="~g", **({"labelExpr": label} if axes.last_label else {}))
    return alt.Axis(tickCount=8, **({"format": "~e"} if axes.log_x else {}))


def layer(chart: alt.Chart) -> dict[str, Any]:
    """The specification of a chart as a layer, without the properties of a complete chart. Only tests validate it."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    return {key: value for key, value in spec.items() if key not in ("$schema", "config", "data", "datasets")}
