"""Lines over a number of examples (or steps): the drawing that learning curves, extrapolation and shifts share.

Backbones carry bands of their 95 % intervals. The tooltip shows the point nearest to the pointer. A parameter `highlight`
holds the contestant that the page's legend has picked; everybody else then fades.
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
_FADED = "highlight === null || datum.contestant === highlight"


@dataclass(frozen=True)
class Axes:
    """Titles and ranges. `domain` clamps: what lies beyond is drawn at the edge. `rule`: the trained number of examples."""

    x: str
    y: str
    domain: tuple[float, float]
    log: bool = False
    rule: int | None = None
    field: str = "n_context"


def live(axes: Axes, looks: Mapping[str, Look]) -> dict[str, Any]:
    """A specification without data, as wide as its container; it draws the data set `rows`."""
    drawing = _Drawing(axes, looks, _FADED)
    chart = alt.layer(*drawing.lines(), drawing.nearest_point(), *drawing.rule(), data=alt.NamedData(name="rows"))
    return _plain(chart.add_params(alt.param(name="highlight", value=None)).properties(width="container", height=300))


def static(
    panels: Sequence[tuple[str, pd.DataFrame]], axes: Axes, looks: Mapping[str, Look], columns: int = 3
) -> dict[str, Any]:
    """A complete specification with data and legend; one panel or a grid of them, each with its title and its rows."""
    drawing = _Drawing(axes, looks, None, [name for name, look in looks.items() if look != BACKGROUND])
    width, height = (560, 340) if len(panels) == 1 else (260, 220)
    charts = [
        alt.layer(*drawing.lines(), *drawing.rule(), data=alt.NamedData(name=f"rows {i}")).properties(
            width=width, height=height, title=title
        )
        for i, (title, _) in enumerate(panels)
    ]
    spec = _plain(charts[0] if len(charts) == 1 else alt.concat(*charts, columns=columns))
    return spec | {"config": CONFIG, "datasets": {f"rows {i}": records(data) for i, (_, data) in enumerate(panels)}}


def records(data: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain Python values; what is missing or infinite becomes None."""
    plain = data.astype(object).where(data.notna(), None)
    return [
        {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        for row in plain.to_dict("records")
    ]


def domain(data: pd.DataFrame, metric: Metric) -> tuple[float, float]:
    """The range of the y axis: what the backbones need, and the part of the baselines that lies near.

    Least squares can reach 1e-20 or peak at 100 on the same axis: the axis follows the backbones (everybody, if there are
    none) and gives the others a factor of five.
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

    def __init__(
        self, axes: Axes, looks: Mapping[str, Look], visible: str | None, legend: list[str] | None = None
    ) -> None:
        self.axes, self.visible = axes, visible
        names, key = list(looks), alt.Legend(title=None, values=legend) if legend else None

        def by_contestant(channel: type, values: list[Any]) -> Any:
            return channel("contestant", type="nominal", scale=alt.Scale(domain=names, range=values), legend=key)

        self.colour = by_contestant(alt.Color, [look.colour for look in looks.values()])
        self.dash = by_contestant(alt.StrokeDash, [list(look.dash) or [1, 0] for look in looks.values()])
        self.width = by_contestant(alt.StrokeWidth, [look.width for look in looks.values()])
        self.series = alt.Detail("series", type="nominal")
        self.x = alt.X(axes.field, type="quantitative", title=axes.x, scale=alt.Scale(nice=False, zero=False))

    def y(self, field: str = "value") -> alt.Y:
        scale = alt.Scale(
            type="log" if self.axes.log else "linear", domain=list(self.axes.domain), clamp=True, nice=False, zero=False
        )
        axis = alt.Axis(format="~g", tickCount=6)
        return alt.Y(field, type="quantitative", title=self.axes.y, scale=scale, axis=axis)

    def opacity(self, full: float, faded: float) -> Any:
        return alt.condition(self.visible, alt.value(full), alt.value(faded)) if self.visible else alt.value(full)

    def lines(self) -> list[alt.Chart]:
        """Bands of the backbones, lines, dots where a line has few points, diamonds for published numbers."""
        chart, shared = alt.Chart(), {"x": self.x, "color": self.colour}
        plain = {"opacity": self.opacity(1.0, 0.12)} | shared
        return [
            chart.transform_filter("datum.kind === 'backbone' && datum.low !== null")
            .mark_area(clip=True)
            .encode(y=self.y("low"), y2="high", detail=self.series, opacity=self.opacity(0.18, 0.02), **shared),
            chart.transform_filter("datum.kind !== 'published'")
            .mark_line(clip=True, strokeCap="round", strokeJoin="round")
            .encode(y=self.y(), strokeDash=self.dash, strokeWidth=self.width, detail=self.series, **plain),
            chart.transform_filter("datum.sparse").mark_point(filled=True, size=16, clip=True).encode(y=self.y(), **plain),
            chart.transform_filter("datum.kind === 'published'")
            .mark_point(shape="diamond", size=90, strokeWidth=2, filled=False)
            .encode(y=self.y(), **plain),
        ]

    def nearest_point(self) -> alt.Chart:
        """The point nearest to the pointer, with its tooltip."""
        nearest = alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")
        number = {"type": "quantitative", "format": ".4~g"}
        tooltip = [
            alt.Tooltip("label", type="nominal", title="contestant"),
            alt.Tooltip(self.axes.field, type="quantitative", title=self.axes.x),
            alt.Tooltip("value", title=self.axes.y, **number),
            alt.Tooltip("low", title="interval from", **number),
            alt.Tooltip("high", title="to", **number),
        ]
        mark = alt.Chart().mark_point(filled=True, size=70, clip=True).properties(name="points").add_params(nearest)
        shown = alt.condition(nearest, alt.value(1), alt.value(0))
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
            label.encode(x=x, y=alt.value(0), text=alt.Text("text", type="nominal")),
        ]


def _plain(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The specification alone: altair's own configuration is replaced by ours."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # the tests validate; here it would take most of the time
    spec.pop("config", None)
    return spec
