"""Figure of samples from the joint predictive distribution of all outputs, over a one-dimensional input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import extent, layer, records
from iclbench.report.figures.marks import HIGHLIGHT, highlighted_opacity
from iclbench.report.style import CONFIG, INK, Look

_COLUMNS = ["panel", "part", "contestant", "set", "x1", "value"]


def figure(
    name: str, title: str, caption: str, examples: pd.DataFrame, order: Sequence[str], looks: Mapping[str, Look]
) -> Figure:
    """A figure with one panel per contestant.

    Args:
        name: name of the figure.
        title: title of the figure.
        caption: caption of the figure.
        examples: points and samples of one episode.
        order: contestants in order.
        looks: looks of these contestants.
    """
    context = examples[examples["role"] == "context"].assign(part="context")
    samples = examples[examples["role"] == "drawn"].assign(part="sample")
    panels = [
        pd.concat([samples[samples["contestant"] == contestant].sort_values(["set", "x1"]), context]).assign(
            panel=contestant
        )
        for contestant in order
    ]
    data = pd.concat(panels)[_COLUMNS].reset_index(drop=True)
    legend = {contestant: looks[contestant] for contestant in order}
    # The y axis fits the first panel, which shows the oracle if it has samples. Samples of poor models may be outside
    # their panels.
    layers = _layers(data, data[data["panel"] == order[0]], legend)
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def make_static() -> dict[str, Any]:
        views = [
            {
                "title": contestant,
                "width": 230,
                "height": 150,
                "layer": layers,
                "data": {"values": records(data[data["panel"] == contestant])},
            }
            for contestant in order
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "concat": views, "columns": 4}

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: {', '.join(order)}.",
        data=data,
        make_static=make_static,
        make_live=lambda: shared | {"data": {"name": "rows"}, "width": "container", "height": 200, "layer": layers},
        panels=tuple(Panel(contestant, {"panel": contestant}) for contestant in order),
        legend=legend,
        columns=4,
    )


def _layers(data: pd.DataFrame, y_data: pd.DataFrame, looks: Mapping[str, Look]) -> list[dict[str, Any]]:
    low, high = extent(y_data["value"])
    margin = 0.05 * (high - low)
    x_scale = alt.Scale(domain=list(extent(data["x1"])), nice=False)
    x = alt.X("x1", type="quantitative", title=None, scale=x_scale, axis=alt.Axis(tickCount=5))
    y_scale = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    y = alt.Y("value", type="quantitative", title=None, scale=y_scale, axis=alt.Axis(tickCount=4))
    scale = alt.Scale(domain=list(looks), range=[look.colour for look in looks.values()])
    colour = alt.Color("contestant", type="nominal", legend=None, scale=scale)
    samples = alt.Chart().transform_filter("datum.part === 'sample'").mark_line(clip=True, strokeWidth=1)
    context = alt.Chart().transform_filter("datum.part === 'context'")
    context = context.mark_point(filled=True, size=30, color=INK, opacity=1, clip=True)
    return [
        layer(samples.encode(x=x, y=y, color=colour, detail="set:N", opacity=highlighted_opacity(0.7))),
        layer(context.encode(x=x, y=y)),
    ]
