"""A heat map of scores: a row per family, a column per contestant, and the score in each cell.

Colours range from orange (below 0) through white (0) to blue (1) and dark blue (above 1). Orange and blue differ under
all common kinds of colour blindness, and cells become darker with the distance from 0. Numbers are black or white,
depending on which colour has the higher contrast with the cell. The contrast is at least 4.5.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt
import pandas as pd

from iclbench.core.formats import Number
from iclbench.report.blocks import Figure, Panel
from iclbench.report.figures.curves import layer, records
from iclbench.report.figures.marks import HIGHLIGHT
from iclbench.report.style import ACCENT, CONFIG, INK, short_names

COLUMNS = ["panel", "row", "contestant", "score", "lowest", "highest", "low", "high", "runs", "run", "status", "reason"]
# Colours of scores as red, green and blue: interpolated between these scores, and constant beyond them.
COLOUR_KNOTS = {-1.0: (0xB3, 0x58, 0x06), 0.0: (0xFA, 0xFA, 0xFA), 1.0: (0x21, 0x66, 0xAC), 1.25: (0x05, 0x30, 0x61)}
NO_SCORE_COLOUR = "#E4E4E4"
# The text of a cell without a score, by status.
STATUS_MARKS = {"failed": "×", "diverged": "∞", "skipped": "n/a", "not run": "?", "not asked": ""}
# The size of a cell in pixels.
_CELL_WIDTH, _ROW_HEIGHT = 33, 22


def score_colour(score: Number) -> tuple[int, int, int]:
    """The colour of a score as red, green and blue, 0 to 255."""
    knots = sorted(COLOUR_KNOTS)
    score = min(max(float(score), knots[0]), knots[-1])
    end = next(i for i, knot in enumerate(knots) if i and score <= knot)
    left, right = knots[end - 1], knots[end]
    share = (score - left) / (right - left)
    red, green, blue = (
        round(a + share * (b - a)) for a, b in zip(COLOUR_KNOTS[left], COLOUR_KNOTS[right], strict=True)
    )
    return red, green, blue


def contrast(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    """Contrast of two colours, from 1 to 21, as defined in WCAG 2.2."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@cache
def white_text_limits() -> tuple[float, float]:
    """The scores below and above which numbers are white."""
    scores = [i / 200 for i in range(-200, 251)]
    black_scores = [
        s for s in scores if contrast(score_colour(s), (0, 0, 0)) >= contrast(score_colour(s), (255, 255, 255))
    ]
    return min(black_scores), max(black_scores)


def score_label(score: Number) -> str:
    """A score as text for a narrow cell.

    >>> [score_label(score) for score in (0.834, -0.21, 1.04, -12.3, 0.999, -3e5, 0)]
    ['.83', '−.21', '1.0', '−12', '1.0', '≪0', '.00']
    """
    value = float(score)
    sign = "−" if value < 0 else ""
    size = abs(value)
    if size < 0.995:
        return (sign if size >= 0.005 else "") + f"{size:.2f}"[1:]
    if size < 9.95:
        return f"{sign}{size:.1f}"
    return f"{sign}{size:.0f}" if size < 99.5 else "≪0" if sign else "≫1"


def figure(
    name: str,
    title: str,
    caption: str,
    data: pd.DataFrame,
    rows: Sequence[str],
    panels: Mapping[str, Sequence[str]],
    user_backbones: Collection[str] = (),
) -> Figure:
    """A figure with panels next to each other in files, and below each other on the page.

    Args:
        name: name of the figure.
        title: title of the figure.
        caption: caption of the figure.
        data: a row per cell, with `COLUMNS`; `score` is missing if `status` is not ok.
        rows: names of the rows from the top, values of the column `row`.
        panels: the contestants of each panel from the left.
        user_backbones: contestants whose names are highlighted.
    """
    cells = data[COLUMNS].reset_index(drop=True)
    cells["label"] = [
        STATUS_MARKS.get(str(status), "?") if pd.isna(score) else score_label(score)
        for score, status in zip(cells["score"], cells["status"], strict=True)
    ]
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}
    panel_rows = {
        panel: [row for row in rows if row in set(cells.loc[cells["panel"].eq(panel), "row"])] for panel in panels
    }
    contestants = [name for names in panels.values() for name in names]
    headings = {name: short for name, short in short_names(contestants).items() if short != name}
    first_panel = next(iter(panels), "")

    def make_static() -> dict[str, Any]:
        views = [
            {
                "title": panel,
                "width": _CELL_WIDTH * len(names),
                "height": _ROW_HEIGHT * len(panel_rows[panel]),
                "layer": _layers(
                    panel_rows[panel],
                    names,
                    user_backbones,
                    headings,
                    row_labels=panel == first_panel or panel_rows[panel] != rows,
                    legend=True,
                ),
                "data": {"values": records(cells[cells["panel"] == panel])},
            }
            for panel, names in panels.items()
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "hconcat": views, "spacing": 14}

    def make_live() -> dict[str, Any]:
        size = {"width": {"step": _CELL_WIDTH}, "height": {"step": _ROW_HEIGHT}, "usermeta": {"height": "as it is"}}
        return shared | {"data": {"name": "rows"}, "layer": _layers(None, None, user_backbones, headings)} | size

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: scores of {', '.join(contestants)} on {', '.join(rows)}; the table below has the same numbers.",
        data=cells,
        make_static=make_static,
        make_live=make_live,
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        columns=1,
    )


def _layers(
    rows: Sequence[str] | None,
    names: Sequence[str] | None,
    user_backbones: Collection[str],
    headings: Mapping[str, str],
    row_labels: bool = True,
    legend: bool = False,
) -> list[dict[str, Any]]:
    """The layers of the cells and of their numbers.

    Args:
        rows: rows in order (None: the order of the data).
        names: columns in order (None: the order of the data).
        user_backbones: columns whose names are highlighted.
        headings: headings of columns that differ from their names.
        row_labels: whether rows have labels.
        legend: whether to add a legend of colours.
    """
    gradient_length = _ROW_HEIGHT * min(len(rows or ()), 8)
    colours = alt.Legend(title="score", gradientLength=gradient_length, orient="right") if legend else None
    scale = alt.Scale(
        domain=list(COLOUR_KNOTS),
        range=[f"#{r:02x}{g:02x}{b:02x}" for r, g, b in COLOUR_KNOTS.values()],
        clamp=True,
        interpolate="rgb",
    )
    row_axis = alt.Axis(
        title=None, labels=row_labels, ticks=False, domain=False, labelLimit=150, labelFontSize=11, labelOverlap=False
    )
    is_user_backbone = f"indexof({json.dumps(sorted(user_backbones))}, datum.value) >= 0"
    column_axis = alt.Axis(
        title=None,
        orient="top",
        labelAngle=-55,
        ticks=False,
        domain=False,
        labelFontSize=11,
        labelOverlap=False,
        labelLimit=105,
        labelExpr=f"{json.dumps(headings)}[datum.value] || datum.label" if headings else alt.Undefined,
        minExtent=86,
        maxExtent=86,
        labelFontWeight=alt.condition(is_user_backbone, alt.value("bold"), alt.value("normal")),
        labelColor=alt.condition(is_user_backbone, alt.value(ACCENT), alt.value(INK)),
    )
    x = alt.X(
        "contestant",
        type="nominal",
        axis=column_axis,
        sort=None,
        scale=alt.Scale(domain=list(names)) if names else alt.Undefined,
    )
    y = alt.Y(
        "row",
        type="nominal",
        axis=row_axis,
        sort=None,
        scale=alt.Scale(domain=list(rows)) if rows else alt.Undefined,
    )
    scored_cells = alt.Chart().transform_filter("isValid(datum.score)")
    fill = alt.Color("score", type="quantitative", scale=scale, legend=colours)
    low, high = white_text_limits()
    ink = alt.condition(
        f"isValid(datum.score) && (datum.score < {low} || datum.score > {high})", alt.value("#fff"), alt.value("#000")
    )
    seed_range = "format(datum.lowest, '.3f') + ' to ' + format(datum.highest, '.3f')"
    interval = "isValid(datum.low) ? format(datum.low, '.3f') + ' to ' + format(datum.high, '.3f') : 'none'"
    fields = (
        "isValid(datum.score) ? {'title': datum.contestant + ' on ' + datum.row, 'score': format(datum.score, '.3f'), "
        f"'interval': {interval}, 'seeds': datum.runs > 1 ? datum.runs + ', ' + {seed_range} : datum.runs, "
        "'': datum.reason} : {'title': datum.contestant + ' on ' + datum.row, '': datum.status + ': ' + datum.reason}"
    )
    tooltip = alt.TooltipValue(alt.ExprRef(fields))
    edge: dict[str, Any] = {"stroke": "white", "strokeWidth": 1.5}
    layers = [
        # All cells, including those that the next layer covers, because the first layer sets the order of columns.
        alt.Chart().mark_rect(color=NO_SCORE_COLOUR, **edge).encode(x=x, y=y, tooltip=tooltip),
        scored_cells.mark_rect(**edge).encode(x=x, y=y, color=fill, tooltip=tooltip),
        alt.Chart().mark_text(fontSize=10.5).encode(x=x, y=y, text=alt.Text("label", type="nominal"), color=ink),
    ]
    return [layer(chart) for chart in layers]


def _luminance(rgb: tuple[int, int, int]) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (c / 255 for c in rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
