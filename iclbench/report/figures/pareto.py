"""Figure of scores against a cost on a logarithmic axis, with Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import layer, records
from iclbench.report.figures.marks import HIGHLIGHT, highlighted_opacity
from iclbench.report.style import CONFIG, Look

COLUMNS = ["panel", "contestant", "cost", "score", "front", "shown", "run"]

# Text styles of names above and below a point of the front.
_SIDES: dict[str, dict[str, Any]] = {
    "above": {"align": "right", "baseline": "bottom", "dx": -5, "dy": -4},
    "below": {"align": "left", "baseline": "top", "dx": 5, "dy": 4},
}
# Width of a letter, height of a line and margin of the panel, as shares of the range of all points.
_LETTER, _LINE, _MARGIN = 0.022, 0.055, 0.08


def is_on_front(points: pd.DataFrame) -> pd.Series:
    """Whether each row is on the Pareto front: no other row is better in cost or score and not worse in the other.

    Args:
        points: columns cost (lower is better) and score (higher is better).
    """
    cost: np.ndarray = points["cost"].to_numpy(float)
    score: np.ndarray = points["score"].to_numpy(float)
    is_as_good = (cost[None] <= cost[:, None]) & (score[None] >= score[:, None])
    is_better = (cost[None] < cost[:, None]) | (score[None] > score[:, None])
    return pd.Series(~(is_as_good & is_better).any(axis=1), index=points.index)


def label_sides(points: pd.DataFrame) -> pd.Series:
    """The side of each point's name: `above` (upper left), `below` (lower right), or empty if it has no name.

    Only points on the front have names. A name is placed above its point or, if it would leave the panel or cover
    another name or point of the front, below its point. If it does not fit there either, the name is only in the
    legend. The names of the best points are placed first.

    Args:
        points: columns contestant, cost, score and front of one panel.
    """
    costs, scores = np.log(points["cost"].to_numpy(float)), points["score"].to_numpy(float)
    x, y = ((values - values.min()) / (np.ptp(values) or 1.0) for values in (costs, scores))
    widths = points["contestant"].str.len().to_numpy(float) * _LETTER
    on_front = points["front"].to_numpy(bool)
    sides = np.full(len(points), "", object)
    placed_boxes: list[tuple[float, float, float, float]] = []
    for n in sorted(np.flatnonzero(on_front), key=lambda n: -x[n]):
        boxes = {
            "above": (x[n] - widths[n], x[n], y[n], y[n] + _LINE),
            "below": (x[n], x[n] + widths[n], y[n] - _LINE, y[n]),
        }
        others = on_front & (np.arange(len(x)) != n)
        for side, (left, right, low, high) in boxes.items():
            is_inside = left >= -_MARGIN and right <= 1 + _MARGIN
            # A name that covers another point would look like the name of that point.
            covers = others & (left < x) & (x < right) & (low - _LINE < y) & (y < high + _LINE)
            overlaps = any(
                left < other_right and other_left < right and low < other_high and other_low < high
                for other_left, other_right, other_low, other_high in placed_boxes
            )
            if is_inside and not covers.any() and not overlaps:
                sides[n] = side
                placed_boxes.append((left, right, low, high))
                break
    return pd.Series(sides, index=points.index)


def figure(
    name: str,
    title: str,
    caption: str,
    data: pd.DataFrame,
    panels: Sequence[str],
    looks: Mapping[str, Look],
    columns: int,
) -> Figure:
    """A figure with one panel per title.

    Args:
        name: name of the figure.
        title: title of the figure.
        caption: caption of the figure.
        data: a row per point, with `COLUMNS`; `shown` is the cost with its unit.
        panels: titles in order, values of the column `panel`.
        looks: looks of all contestants in the data.
        columns: number of panels per row.
    """
    points = data[COLUMNS].reset_index(drop=True)
    points = points.assign(label=pd.concat([label_sides(panel_points) for _, panel_points in points.groupby("panel")]))
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def make_static() -> dict[str, Any]:
        layers = _layers(looks, legend=True)
        views = [
            {
                "title": panel,
                "width": 250,
                "height": 220,
                "layer": layers,
                "data": {"values": records(points[points["panel"] == panel])},
            }
            for panel in panels
        ]
        layout = {"concat": views, "columns": columns, "resolve": {"scale": {"x": "independent"}}}
        return shared | {"$schema": alt.SCHEMA_URL} | layout

    def make_live() -> dict[str, Any]:
        layers = _layers(looks, legend=False)
        return shared | {"data": {"name": "rows"}, "width": "container", "height": 260, "layer": layers}

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: scores against costs of {', '.join(looks)}; panels: {'; '.join(panels)}.",
        data=points,
        make_static=make_static,
        make_live=make_live,
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        legend=looks,
        columns=columns,
    )


def _layers(looks: Mapping[str, Look], legend: bool) -> list[dict[str, Any]]:
    point_legend = alt.Legend(title=None, symbolOpacity=1, symbolStrokeWidth=2) if legend else None

    def by_contestant(channel: type, values: list[Any]) -> Any:
        scale = alt.Scale(domain=list(looks), range=values)
        return channel("contestant", type="nominal", scale=scale, legend=point_legend)

    colour = by_contestant(alt.Color, [look.colour for look in looks.values()])
    shape = by_contestant(alt.Shape, [look.shape for look in looks.values()])
    cost_scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X(
        "cost",
        type="quantitative",
        title=None,
        scale=cost_scale,
        axis=alt.Axis(format=".3~s", tickCount=4, labelSeparation=6),
    )
    # Without a format, the axis of a single point has the label 0.
    score_axis = alt.Axis(format=".4~g")
    y = alt.Y("score", type="quantitative", title="score", scale=alt.Scale(zero=False, padding=16), axis=score_axis)

    front_points, others = (alt.Chart().transform_filter(test) for test in ("datum.front", "!datum.front"))
    fields = "{'contestant': datum.contestant, 'score': format(datum.score, '.3f'), 'cost': datum.shown}"
    tooltip = alt.TooltipValue(alt.ExprRef(fields))
    layers = [
        front_points.mark_line(interpolate="step-after", color="#777", strokeWidth=1.4, strokeDash=[4, 3]).encode(
            x=x, y=y, order=alt.Order("cost", type="quantitative")
        ),
        others.mark_point(filled=True, size=70).encode(
            x=x, y=y, color=colour, shape=shape, opacity=highlighted_opacity(0.4), tooltip=tooltip
        ),
        front_points.mark_point(filled=True, size=95).encode(
            x=x, y=y, color=colour, shape=shape, opacity=highlighted_opacity(1.0), tooltip=tooltip
        ),
        *(
            alt.Chart()
            .transform_filter(f"datum.label === '{side}'")
            .mark_text(fontSize=11, **style)
            .encode(x=x, y=y, text=alt.Text("contestant", type="nominal"), opacity=highlighted_opacity(1.0))
            for side, style in _SIDES.items()
        ),
    ]
    return [layer(chart) for chart in layers]
