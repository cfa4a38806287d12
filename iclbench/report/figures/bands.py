"""Predictive means and 90 % bands over a one-dimensional input, a panel per episode and contestant, with the oracle's.

As figures 2, 3, 12 and 13 of the ICICL-TNP paper (arXiv 2406.13493): context points black, targets grey.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.drawn_episodes import Shown
from iclbench.report.figures.curves import extent, layer, records
from iclbench.report.figures.marks import HIGHLIGHT, lit
from iclbench.report.style import CONFIG, INK, Look

_COLUMNS = ["panel", "part", "run", "contestant", "x1", "value", "low", "high"]
CAPTION = "Bands: central 90 % intervals; black dots: context points; grey dots: targets"


def figure(
    name: str,
    title: str,
    caption: str,
    panels: Mapping[str, tuple[pd.DataFrame, Shown]],
    oracle: str | None,
    looks: Mapping[str, Look],
    columns: int,
) -> Figure:
    """One panel per title.

    Args:
        name: of the figure.
        title: of the figure.
        caption: what comes before the legend of marks.
        panels: per title the examples of one episode, and the contestant that is drawn.
        oracle: drawn in every panel with dashed edges, if its predictions are among the examples.
        looks: of all contestants that are drawn, also of the oracle.
        columns: panels in a row.
    """
    data = pd.concat([_rows(rows, shown, oracle).assign(panel=panel) for panel, (rows, shown) in panels.items()])
    data = data[_COLUMNS].reset_index(drop=True)
    drawn = {who: look for who, look in looks.items() if who in set(data["contestant"])}
    layers = _layers(data, drawn)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def printed() -> dict[str, Any]:
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
        alt=f"{title}: {', '.join(drawn)}; panels: {'; '.join(panels)}.",
        data=data,
        printed=printed,
        shown=lambda: shared | {"data": {"name": "rows"}, "width": "container", "height": 200, "layer": layers},
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        legend=drawn,
        columns=columns,
    )


def _rows(examples: pd.DataFrame, shown: Shown, oracle: str | None) -> pd.DataFrame:
    """Points, prediction and oracle of one episode."""
    predicted = examples[examples["role"] == "predicted"]
    given = predicted["n_related"].fillna(0)
    own = predicted[(predicted["contestant"] == shown.contestant) & given.eq(shown.n_related)]
    best = predicted[predicted["contestant"] == oracle]
    # An oracle that uses related datasets is shown with as many of them, if it was asked so.
    informed = best[given[best.index].eq(shown.n_related)]
    best = informed if len(informed) else best[given[best.index].eq(0)]
    parts = {
        "target": examples[examples["role"] == "target"],
        "oracle": best if shown.contestant != oracle else best.iloc[:0],
        "prediction": own,
        "context": examples[examples["role"] == "context"],
    }
    return pd.concat([rows.assign(part=part).sort_values("x1") for part, rows in parts.items()])


def _layers(data: pd.DataFrame, looks: Mapping[str, Look]) -> list[dict[str, Any]]:
    # Bands of poor predictions may leave the panel; points and the oracle do not.
    framed = data[data["part"].isin(["context", "target", "oracle"])]
    framed = framed if len(framed) else data
    low, high = extent(pd.concat([framed[name].dropna() for name in ("value", "low", "high")]))
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

    own, oracle = part("prediction"), part("oracle")
    band = own.transform_filter("isValid(datum.low)").mark_area(clip=True)
    line = own.mark_line(clip=True, strokeWidth=2)
    mean = oracle.mark_line(clip=True, strokeWidth=1.3, strokeDash=[6, 2], color=INK)
    edge = oracle.transform_filter("isValid(datum.low)")
    edge = edge.mark_line(clip=True, strokeWidth=1, strokeDash=[3, 2], color=INK)
    seen = part("context").mark_point(filled=True, size=30, color=INK, opacity=1, clip=True)
    unseen = part("target").mark_point(filled=True, size=9, color="#999", opacity=0.5, clip=True)
    charts = [
        unseen.encode(x=x, y=y("value")),
        band.encode(x=x, y=y("low"), y2=alt.Y2("high"), color=colour, opacity=lit(0.25)),
        line.encode(x=x, y=y("value"), color=colour, opacity=lit(1.0)),
        *(edge.encode(x=x, y=y(end), opacity=lit(0.9)) for end in ("low", "high")),
        mean.encode(x=x, y=y("value"), opacity=lit(1.0)),
        seen.encode(x=x, y=y("value")),
    ]
    return [layer(chart) for chart in charts]
