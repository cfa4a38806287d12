"""A chart of the values of one metric with intervals, the best contestant first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import altair as alt
import pandas as pd

from iclbench.core.metrics import METRICS, Metric
from iclbench.report.figures import curves
from iclbench.report.figures.marks import Marks
from iclbench.report.style import CONFIG, Look

# A linear axis extends beyond the range of the better half of the contestants by up to this multiple of that range.
_REACH = 3.0


def chart(rows: pd.DataFrame, measure: Metric, looks: Mapping[str, Look], title: str) -> alt.LayerChart:
    """A chart with a point and an interval for each contestant.

    As in learning curves, the axis is logarithmic if errors span a decade. Contestants beyond the axis are drawn at its
    edge and named below the title.

    Args:
        rows: one row per contestant, best first, with the columns contestant, kind, value, low and high.
        measure: metric of the values.
        looks: looks of the contestants.
        title: title of the chart.
    """
    order = rows["contestant"].tolist()
    # An area under a curve has a logarithmic axis if the curve has one.
    is_area = any(curve.area == measure.name and curve.logarithmic for curve in METRICS.values())
    axis_measure = replace(measure, logarithmic=(measure.logarithmic or is_area) and curves.spans_a_decade(rows))
    low, high = curves.domain(rows, axis_measure) if axis_measure.logarithmic else _linear_range(rows, measure)
    clipped_columns = {f"{end}_clipped": rows[end].astype(float).clip(low, high) for end in ("value", "low", "high")}
    is_within = rows.set_index("contestant")["value"].between(low, high)
    names_beyond = [name for name in order if not is_within[name]]
    marks = Marks({name: looks[name] for name in order}, False)
    better = "lower" if measure.lower_is_better else "higher"
    axis_title = f"{measure.label} ({f'{measure.unit}; ' if measure.unit else ''}{better} is better)"
    kind: Any = "log" if axis_measure.logarithmic else "linear"

    def x(column: str) -> alt.X:
        scale = alt.Scale(type=kind, domain=[low, high], nice=False, zero=False)
        return alt.X(f"{column}_clipped:Q", title=axis_title, scale=scale, axis=alt.Axis(format=".4~g", tickCount=6))

    y = alt.Y("contestant:N", sort=order, title=None)
    titles = alt.TitleParams(
        title, subtitle=f"beyond the axis: {', '.join(names_beyond)}" if names_beyond else alt.Undefined
    )
    base = alt.Chart(rows.assign(**clipped_columns), title=titles)
    intervals = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
    points = base.mark_point(size=90, strokeWidth=2, opacity=1)
    tooltip = ["contestant", "kind", "value", "low", "high"]
    return (
        alt.layer(
            intervals.encode(x=x("low"), x2="high_clipped:Q", y=y, color=marks.colour),
            points.encode(x=x("value"), y=y, tooltip=tooltip, **marks.points),
        )
        .properties(width=420)
        .configure(**CONFIG)
    )


def _linear_range(rows: pd.DataFrame, measure: Metric) -> tuple[float, float]:
    """The range of the x axis. It covers the intervals of the better half of the contestants and of contestants near
    them; for shares, it is 0 to 1."""
    if measure.is_share:
        return 0.0, 1.0
    sorted_rows = rows.sort_values("value", ascending=measure.lower_is_better)
    best_low, best_high = _range(sorted_rows.head((len(sorted_rows) + 1) // 2))
    reach = _REACH * (best_high - best_low)
    near_rows = rows[rows["value"].between(best_low - reach, best_high + reach)] if reach > 0 else rows
    low, high = _range(near_rows)
    margin = 0.05 * (high - low) or 0.5
    starts_at_zero = measure.lower_is_better and low >= 0
    return 0.0 if starts_at_zero else low - margin, high + margin


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    """The lowest and the highest end of the intervals, or of values that have no interval."""
    low, high = (rows[end].fillna(rows["value"]).astype(float) for end in ("low", "high"))
    return float(low.min()), float(high.max())
