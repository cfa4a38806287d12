"""Samples of the joint predictive distribution of all outputs, over a one-dimensional input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import extent, layer, records
from iclbench.report.figures.marks import HIGHLIGHT, lit
from iclbench.report.style import CONFIG, INK, Look

_COLUMNS = ["panel", "part", "contestant", "set", "x1", "value"]


def figure(
    name: str, title: str, caption: str, examples: pd.DataFrame, order: Sequence[str], looks: Mapping[str, Look]
) -> Figure:
    """One panel per contestant.

    Args:
        name, title, caption: of the figure.
        examples: points and samples of one episode.
        order: the contestants, one after the other.
        looks: of all contestants that are drawn.
    """
    context = examples[examples["role"] == "context"].assign(part="context")
    samples = examples[examples["role"] == "drawn"].assign(part="sample")
    panels = [
        pd.concat([samples[samples["contestant"] == who].sort_values(["set", "x1"]), context]).assign(panel=who)
        for who in order
    ]
    data = pd.concat(panels)[_COLUMNS].reset_index(drop=True)
    drawn = {who: looks[who] for who in order}
    # As high as the first one's, who is the oracle where there is one: poor samples may leave their panels.
    layers = _layers(data, data[data["panel"] == order[0]], drawn)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def printed() -> dict[str, Any]:
        views = [
            {
                "title": who,
                "width": 230,
                "height": 150,
                "layer": layers,
                "data": {"values": records(data[data["panel"] == who])},
            }
            for who in order
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "concat": views, "columns": 4}

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: {', '.join(order)}.",
        data=data,
        printed=printed,
        shown=lambda: shared | {"data": {"name": "rows"}, "width": "container", "height": 200, "layer": layers},
        panels=tuple(Panel(who, {"panel": who}) for who in order),
        legend=drawn,
        columns=4,
    )


def _layers(data: pd.DataFrame, framed: pd.DataFrame, looks: Mapping[str, Look]) -> list[dict[str, Any]]:
    low, high = extent(framed["value"])
    margin = 0.05 * (high - low)
    across = alt.Scale(domain=list(extent(data["x1"])), nice=False)
    x = alt.X("x1", type="quantitative", title=None, scale=across, axis=alt.Axis(tickCount=5))
    up = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    y = alt.Y("value", type="quantitative", title=None, scale=up, axis=alt.Axis(tickCount=4))
    scale = alt.Scale(domain=list(looks), range=[look.colour for look in looks.values()])
    colour = alt.Color("contestant", type="nominal", legend=None, scale=scale)
    samples = alt.Chart().transform_filter("datum.part === 'sample'").mark_line(clip=True, strokeWidth=1)
    seen = alt.Chart().transform_filter("datum.part === 'context'")
    seen = seen.mark_point(filled=True, size=30, color=INK, opacity=1, clip=True)
    return [
        layer(samples.encode(x=x, y=y, color=colour, detail="set:N", opacity=lit(0.7))),
        layer(seen.encode(x=x, y=y)),
    ]
