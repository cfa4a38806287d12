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

from iclbench.report.metrics import Metric
from iclbench.report.style import BACKGROUND, CONFIG, Look

OTHERS = "other baselines"
_SHOWN = "highlight === null || datum.contestant === highlight"


@dataclass(frozen=True)
class Axes:
    """Titles and ranges: `range` of x, `domain` of y (values beyond lie on its edge); `rule`: the trained length."""

    x: str
    y: str
    range: tuple[float, float]
    domain: tuple[float, float]
    log: bool = False
    rule: int | None = None
    field: str = "n_context"


def live(axes: Axes, looks: Mapping[str, Look]) -> dict[str, Any]:
    """A specification without data, as wide as its container; it draws the data set `rows`."""
    drawing = _Drawing(axes, looks)
    chart = alt.layer(*drawing.lines(), drawing.nearest_point(), *drawing.rule(), data=alt.NamedData(name="rows"))
    return _plain(chart.add_params(alt.param(name="highlight", value=None)).properties(width="container", height=300))


def static(
    panels: Sequence[tuple[str, pd.DataFrame]], axes: Axes, looks: Mapping[str, Look], columns: int = 3
) -> dict[str, Any]:
    """A complete specification with data and legend; one panel or a grid of them, each with its title and its rows."""
    drawing = _Drawing(axes, looks, [name for name, look in looks.items() if look != BACKGROUND])
    width, height = (560, 340) if len(panels) == 1 else (260, 220)
    charts = [
        alt.layer(*drawing.lines(), *drawing.rule(), data=alt.NamedData(name=f"rows {i}")).properties(
            width=width, height=height, title=title
        )
        for i, (title, _) in enumerate(panels)
    ]
    whole = charts[0] if len(charts) == 1 else alt.concat(*charts, columns=columns)
    spec = _plain(whole.add_params(alt.param(name="highlight", value=None)))
    return spec | {"config": CONFIG, "datasets": {f"rows {i}": records(data) for i, (_, data) in enumerate(panels)}}


def records(data: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain Python values; what is missing or infinite becomes None."""
    plain = data.astype(object).where(data.notna(), None)
    return [
        {str(k): None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        for row in plain.to_dict("records")
    ]


def domain(data: pd.DataFrame, metric: Metric) -> tuple[float, float]:
    """The range of the y axis: what the backbones need, and the part of the baselines that lies near.

    Least squares can reach 1e-20 or peak at 100 on the same axis: the axis follows the backbones (everybody, if there
    are none) and gives the others a factor of five.
    """
    values = data["value"].astype(float).replace([np.inf, -np.inf], np.nan).dropna()
    of_backbones = values[data.loc[values.index, "kind"] == "backbone"]
    lead = of_backbones if len(of_backbones) else values
    if lead.empty:
        return (0.1, 1.0) if metric.log else (0.0, 1.0)
    if not metric.log:
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

    def __init__(self, axes: Axes, looks: Mapping[str, Look], legend: list[str] | None = None) -> None:
        self.axes, self.looks = axes, looks
        key = alt.Legend(title=None, values=legend, symbolType="stroke", symbolOpacity=1) if legend else None

        def by_contestant(channel: type, values: list[Any]) -> Any:
            return channel("contestant", type="nominal", scale=alt.Scale(domain=list(looks), range=values), legend=key)

        self.colour = by_contestant(alt.Color, [look.colour for look in looks.values()])
        self.dash = by_contestant(alt.StrokeDash, [list(look.dash) or [1, 0] for look in looks.values()])
        self.series = alt.Detail("series", type="nominal")
        self.x = alt.X(
            axes.field, type="quantitative", title=axes.x, scale=alt.Scale(domain=list(axes.range), nice=False),
            axis=alt.Axis(tickCount=8),
        )  # fmt: skip

    def y(self, field: str = "value") -> alt.Y:
        kind = {"type": "log"} if self.axes.log else {"type": "linear", "zero": False}
        scale = alt.Scale(**kind, domain=list(self.axes.domain), clamp=True, nice=False)
        axis = alt.Axis(format="~g", tickCount=6)
        return alt.Y(field, type="quantitative", title=self.axes.y, scale=scale, axis=axis)

    def opacity(self, full: float, faded: float) -> alt.OpacityValue:
        return alt.OpacityValue(faded, condition={"test": _SHOWN, "value": full})

    def lines(self) -> list[alt.Chart]:
        """Bands of the backbones, a line each, dots where a line has few points, diamonds for published numbers."""
        chart, shared = alt.Chart(), {"x": self.x, "color": self.colour}
        plain = {"y": self.y(), "opacity": self.opacity(1.0, 0.12)} | shared
        band = chart.transform_filter("datum.kind === 'backbone' && datum.low !== null").mark_area(clip=True)
        layers = [
            band.encode(
                y=self.y("low"), y2=alt.Y2("high"), detail=self.series, opacity=self.opacity(0.18, 0.02), **shared
            )
        ]
        # One layer per width: a scale of widths would need an ordered field.
        for width in sorted({look.width for look in self.looks.values()}):
            names = [name for name, look in self.looks.items() if look.width == width]
            wide = chart.transform_filter("datum.kind !== 'published'").transform_filter(
                alt.FieldOneOfPredicate(field="contestant", oneOf=names)
            )
            line = wide.mark_line(clip=True, strokeCap="round", strokeJoin="round", strokeWidth=width)
            layers.append(line.encode(strokeDash=self.dash, detail=self.series, **plain))
        dots = chart.transform_filter("datum.sparse").mark_point(filled=True, size=16, clip=True)
        theirs = chart.transform_filter("datum.kind === 'published'")
        diamonds = theirs.mark_point(shape="diamond", size=90, strokeWidth=2, filled=False)
        return [*layers, dots.encode(**plain), diamonds.encode(**plain)]

    def nearest_point(self) -> alt.Chart:
        """The point nearest to the pointer, with its tooltip."""
        nearest = alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")
        number: dict[str, Any] = {"type": "quantitative", "format": ".4~g"}
        tooltip = [
            alt.Tooltip("label", type="nominal", title="contestant"),
            alt.Tooltip(self.axes.field, type="quantitative", title=self.axes.x),
            alt.Tooltip("value", title=self.axes.y, **number),
            alt.Tooltip("low", title="interval from", **number),
            alt.Tooltip("high", title="to", **number),
        ]
        mark = alt.Chart().mark_point(filled=True, size=70, clip=True).properties(name="points").add_params(nearest)
        shown = alt.OpacityValue(0, condition={"param": "hover", "value": 1, "empty": False})
        return mark.encode(x=self.x, y=self.y(), color=self.colour, tooltip=tooltip, opacity=shown)

    def rule(self) -> list[alt.Chart]:
        """A dashed rule at the trained number of examples."""
        if self.axes.rule is None:
            return []
        mark = alt.Chart(alt.Data(values=[{"n": self.axes.rule, "text": f"trained: {self.axes.rule}"}]))
        x = alt.X("n", type="quantitative")
        label = mark.mark_text(align="right", baseline="top", dx=-4, dy=2, fontSize=11, color="#444")
        return [
            mark.mark_rule(strokeDash=[5, 4], color="#555", strokeWidth=1.2).encode(x=x),
            label.encode(x=x, y=alt.YValue(0), text=alt.Text("text", type="nominal")),
        ]


def extent(values: pd.Series) -> tuple[float, float]:
    """The range of the x axis; one wide where there is a single value."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _plain(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The specification alone: altair's own configuration is replaced by ours."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # the tests validate; here it would take most of the time
    spec.pop("config", None)
    return spec
