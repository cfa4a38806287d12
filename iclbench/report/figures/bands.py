"""Figures of predictive means and 90 % bands over a one-dimensional input, for contestants and the oracle.

Context points are black and targets grey, as in figures 2, 3, 12 and 13 of the ICICL-TNP paper (arXiv 2406.13493).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.drawn_episodes import DrawnContestant
from iclbench.report.figures.curves import extent, layer, records
from iclbench.report.figures.marks import HIGHLIGHT, highlighted_opacity
from iclbench.report.style import CONFIG, INK, Look

_COLUMNS = ["panel", "part", "run", "contestant", "x1", "value", "low", "high"]
CAPTION = "Bands: central 90 % intervals; black dots: context points; grey dots: targets"


def figure(
    name: str,
    title: str,
    caption: str,
    panels: Mapping[str, tuple[pd.DataFrame, DrawnContestant]],
    oracle: str | None,
    looks: Mapping[str, Look],
    columns: int,
) -> Figure:
    """A figure with one panel per title.

    Args:
        name: name of the figure.
        title: title of the figure.
        caption: caption, to which a description of the marks is added.
        panels: the examples of one episode and the contestant of each panel.
        oracle: name of the oracle, whose predictions are dashed lines; None if the task has no oracle.
        looks: looks of all contestants and of the oracle.
        columns: number of panels per row.
    """
    data = pd.concat([_rows(rows, drawn, oracle).assign(panel=panel) for panel, (rows, drawn) in panels.items()])
    data = data[_COLUMNS].reset_index(drop=True)
    contestants = set(data["contestant"].unique())
    legend = {contestant: look for contestant, look in looks.items() if contestant in contestants}
    layers = _layers(data, legend)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def make_static() -> dict[str, Any]:
        views = [
            {
                "title": panel,
                "width": 230,
                "height": 150,
                "layer": layers,
                "data": {"values": records(data[data["panel"] == panel])},
            }
            for panel in panels
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "concat": views, "columns": columns}

    reference = f"; dashed: {oracle}" if oracle in set(data["contestant"]) else ""
    return Figure(
        name=name,
        title=title,
        caption=f"{caption} {CAPTION}{reference}.",
        alt=f"{title}: {', '.join(legend)}; panels: {'; '.join(panels)}.",
        data=data,
        make_static=make_static,
        make_live=lambda: shared | {"data": {"name": "rows"}, "width": "container", "height": 200, "layer": layers},
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        legend=legend,
        columns=columns,
    )


def _rows(examples: pd.DataFrame, drawn: DrawnContestant, oracle: str | None) -> pd.DataFrame:
    """The points of one episode, the prediction of the contestant, and the prediction of the oracle."""
    predicted_rows = examples[examples["role"] == "predicted"]
    counts = predicted_rows["n_related"].fillna(0)
    prediction = predicted_rows[(predicted_rows["contestant"] == drawn.contestant) & counts.eq(drawn.n_related)]
    oracle_rows = predicted_rows[predicted_rows["contestant"] == oracle]
    # The oracle's prediction with the same number of related datasets or, if missing, without related datasets.
    with_related = oracle_rows[counts[oracle_rows.index].eq(drawn.n_related)]
    oracle_rows = with_related if len(with_related) else oracle_rows[counts[oracle_rows.index].eq(0)]
    parts = {
        "target": examples[examples["role"] == "target"],
        "oracle": oracle_rows if drawn.contestant != oracle else oracle_rows.iloc[:0],
        "prediction": prediction,
        "context": examples[examples["role"] == "context"],
    }
    return pd.concat([rows.assign(part=part).sort_values("x1") for part, rows in parts.items()])


def _layers(data: pd.DataFrame, looks: Mapping[str, Look]) -> list[dict[str, Any]]:
    # The y range covers the points and the oracle; bands of poor predictions may be clipped.
    y_data = data[data["part"].isin(["context", "target", "oracle"])]
    y_data = y_data if len(y_data) else data
    low, high = extent(pd.concat([y_data[name].dropna() for name in ("value", "low", "high")]))
    margin = 0.05 * (high - low)
    colour = alt.Color(
        "contestant",
        type="nominal",
        legend=None,
        scale=alt.Scale(domain=list(looks), range=[look.colour for look in looks.values()]),
    )
    x = alt.X(
        "x1",
        type="quantitative",
        title=None,
        scale=alt.Scale(domain=list(extent(data["x1"])), nice=False),
        axis=alt.Axis(tickCount=5),
    )

    def y(field: str) -> alt.Y:
        scale = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
        return alt.Y(field, type="quantitative", title=None, scale=scale, axis=alt.Axis(tickCount=4))

    def part(name: str) -> alt.Chart:
        return alt.Chart().transform_filter(f"datum.part === '{name}'")

    prediction, oracle = part("prediction"), part("oracle")
    band = prediction.transform_filter("isValid(datum.low)").mark_area(clip=True)
    line = prediction.mark_line(clip=True, strokeWidth=2)
    oracle_mean = oracle.mark_line(clip=True, strokeWidth=1.3, strokeDash=[6, 2], color=INK)
    oracle_edge = oracle.transform_filter("isValid(datum.low)")
    oracle_edge = oracle_edge.mark_line(clip=True, strokeWidth=1, strokeDash=[3, 2], color=INK)
    context = part("context").mark_point(filled=True, size=30, color=INK, opacity=1, clip=True)
    targets = part("target").mark_point(filled=True, size=9, color="#999", opacity=0.5, clip=True)
    charts = [
        targets.encode(x=x, y=y("value")),
        band.encode(x=x, y=y("low"), y2=alt.Y2("high"), color=colour, opacity=highlighted_opacity(0.25)),
        line.encode(x=x, y=y("value"), color=colour, opacity=highlighted_opacity(1.0)),
        *(oracle_edge.encode(x=x, y=y(end), opacity=highlighted_opacity(0.9)) for end in ("low", "high")),
        oracle_mean.encode(x=x, y=y("value"), opacity=highlighted_opacity(1.0)),
        context.encode(x=x, y=y("value")),
    ]
    return [layer(chart) for chart in charts]
