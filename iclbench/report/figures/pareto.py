"""Scores against a cost on a logarithmic axis, with the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import layer, records
from iclbench.report.figures.marks import HIGHLIGHT, lit
from iclbench.report.style import CONFIG, Look

COLUMNS = ["panel", "contestant", "cost", "score", "front", "shown", "run"]

# Names of points on the front, and how near (as parts of both axes) two points are whose names would meet.
_SIDES: dict[str, dict[str, Any]] = {
    "above": {"align": "right", "baseline": "bottom", "dx": -5, "dy": -4},
    "below": {"align": "left", "baseline": "top", "dx": 5, "dy": 4},
}
# Of the way from the first point to the last: a letter of a name, the height of a line, what is free at both sides.
_LETTER, _LINE, _MARGIN = 0.022, 0.055, 0.08


def front(points: pd.DataFrame) -> pd.Series:
    """For every row whether no other is at most as expensive and at least as good, and better in one of the two.

    Args:
        points: columns cost (less is better) and score (more is better).
    """
    cost: np.ndarray = points["cost"].to_numpy(float)
    score: np.ndarray = points["score"].to_numpy(float)
    as_good = (cost[None] <= cost[:, None]) & (score[None] >= score[:, None])
    better = (cost[None] < cost[:, None]) | (score[None] > score[:, None])
    return pd.Series(~(as_good & better).any(axis=1), index=points.index)


def labels(points: pd.DataFrame) -> pd.Series:
    """Where the name of a point on the front stands: to its upper left (`above`), where no point of the front is, or to
    its lower right (`below`) where that would be on the axis, or on a name or a point of another. Whoever has no room
    on either side has no name but in the legend; the better ones are placed first. Empty for all others.

    Args:
        points: columns contestant, cost, score and front of one panel.
    """
    costs, scores = np.log(points["cost"].to_numpy(float)), points["score"].to_numpy(float)
    x, y = ((values - values.min()) / (np.ptp(values) or 1.0) for values in (costs, scores))
    widths = points["contestant"].str.len().to_numpy(float) * _LETTER
    on_front = points["front"].to_numpy(bool)
    found = np.full(len(points), "", object)
    taken: list[tuple[float, float, float, float]] = []
    for n in sorted(np.flatnonzero(on_front), key=lambda n: -x[n]):
        places = {
            "above": (x[n] - widths[n], x[n], y[n], y[n] + _LINE),
            "below": (x[n], x[n] + widths[n], y[n] - _LINE, y[n]),
        }
        others = on_front & (np.arange(len(x)) != n)
        for side, (left, right, low, high) in places.items():
            inside = left >= -_MARGIN and right <= 1 + _MARGIN
            # A name over another's point would be taken for the other's.
            over = others & (left < x) & (x < right) & (low - _LINE < y) & (y < high + _LINE)
            crossed = any(left < r and a < right and low < h and b < high for a, r, b, h in taken)
            if inside and not over.any() and not crossed:
                found[n] = side
                taken.append((left, right, low, high))
                break
    return pd.Series(found, index=points.index)


def figure(
    name: str,
    title: str,
    caption: str,
    data: pd.DataFrame,
    panels: Sequence[str],
    looks: Mapping[str, Look],
    columns: int,
) -> Figure:
    """One panel per title.

    Args:
        name: of the figure.
        title: of the figure.
        caption: of the figure.
        data: a row per mark, with `COLUMNS`; `shown` is the cost with its unit.
        panels: titles, in order; the column `panel` names them.
        looks: of all contestants in the data.
        columns: panels in a row.
    """
    drawn = data[COLUMNS].reset_index(drop=True)
    drawn = drawn.assign(label=pd.concat([labels(own) for _, own in drawn.groupby("panel")]))
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}

    def printed() -> dict[str, Any]:
        layers = _layers(looks, legend=True)
        views = [
            {
                "title": panel,
                "width": 250,
                "height": 220,
                "layer": layers,
                "data": {"values": records(drawn[drawn["panel"] == panel])},
            }
            for panel in panels
        ]
        placed = {"concat": views, "columns": columns, "resolve": {"scale": {"x": "independent"}}}
        return shared | {"$schema": alt.SCHEMA_URL} | placed

    def shown() -> dict[str, Any]:
        layers = _layers(looks, legend=False)
        return shared | {"data": {"name": "rows"}, "width": "container", "height": 260, "layer": layers}

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: scores against costs of {', '.join(looks)}; panels: {'; '.join(panels)}.",
        data=drawn,
        printed=printed,
        shown=shown,
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        legend=looks,
        columns=columns,
    )


def _layers(looks: Mapping[str, Look], legend: bool) -> list[dict[str, Any]]:
    key = alt.Legend(title=None, symbolOpacity=1, symbolStrokeWidth=2) if legend else None

    def by_contestant(channel: type, values: list[Any]) -> Any:
        return channel("contestant", type="nominal", scale=alt.Scale(domain=list(looks), range=values), legend=key)

    colour = by_contestant(alt.Color, [look.colour for look in looks.values()])
    shape = by_contestant(alt.Shape, [look.shape for look in looks.values()])
    costs = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X(
        "cost",
        type="quantitative",
        title=None,
        scale=costs,
        axis=alt.Axis(format=".3~s", tickCount=4, labelSeparation=6),
    )
    y = alt.Y("score", type="quantitative", title="score", scale=alt.Scale(zero=False, padding=16))

    best, others = (alt.Chart().transform_filter(test) for test in ("datum.front", "!datum.front"))
    fields = "{'contestant': datum.contestant, 'score': format(datum.score, '.3f'), 'cost': datum.shown}"
    tooltip = alt.TooltipValue(alt.ExprRef(fields))
    layers = [
        best.mark_line(interpolate="step-after", color="#777", strokeWidth=1.4, strokeDash=[4, 3]).encode(
            x=x, y=y, order=alt.Order("cost", type="quantitative")
        ),
        others.mark_point(filled=True, size=70).encode(
            x=x, y=y, color=colour, shape=shape, opacity=lit(0.4), tooltip=tooltip
        ),
        best.mark_point(filled=True, size=95).encode(
            x=x, y=y, color=colour, shape=shape, opacity=lit(1.0), tooltip=tooltip
        ),
        *(
            alt.Chart()
            .transform_filter(f"datum.label === '{side}'")
            .mark_text(fontSize=11, **look)
            .encode(x=x, y=y, text=alt.Text("contestant", type="nominal"), opacity=lit(1.0))
            for side, look in _SIDES.items()
        ),
    ]
    return [layer(chart) for chart in layers]
