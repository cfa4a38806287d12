"""A heat map of scores: a row per family, a column per contestant, the number in the cell.

Colours run from orange (below zero) through white (zero) to blue (one) and dark blue (beyond): the two sides stay apart
under all common kinds of colour blindness, and lightness falls with the distance from zero. Numbers are black or white,
whichever is in stronger contrast with their cell, at least 4.5.
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
from iclbench.report.style import ACCENT, CONFIG, INK, short

COLUMNS = ["panel", "row", "contestant", "score", "lowest", "highest", "low", "high", "runs", "run", "status", "reason"]
# Scores and their colours; between them red, green and blue are interpolated, beyond them the last one stays.
KNOTS = {-1.0: (0xB3, 0x58, 0x06), 0.0: (0xFA, 0xFA, 0xFA), 1.0: (0x21, 0x66, 0xAC), 1.25: (0x05, 0x30, 0x61)}
NO_SCORE = "#E4E4E4"
MARKS = {"failed": "×", "diverged": "∞", "skipped": "n/a", "not run": "?", "not asked": ""}
_CELL, _ROW = 33, 22


def colour(score: Number) -> tuple[int, int, int]:
    """The colour of a score as red, green and blue, 0 to 255."""
    knots = sorted(KNOTS)
    score = min(max(float(score), knots[0]), knots[-1])
    end = next(i for i, knot in enumerate(knots) if i and score <= knot)
    left, right = knots[end - 1], knots[end]
    part = (score - left) / (right - left)
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(KNOTS[left], KNOTS[right], strict=True))
    return red, green, blue


def contrast(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    """Contrast of two colours as WCAG 2.2 defines it: from 1 to 21."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@cache
def white_beyond() -> tuple[float, float]:
    """Below the first and above the second score numbers are white."""
    grid = [i / 200 for i in range(-200, 251)]
    black = [s for s in grid if contrast(colour(s), (0, 0, 0)) >= contrast(colour(s), (255, 255, 255))]
    return min(black), max(black)


def label(score: Number) -> str:
    """A score as it stands in a narrow cell.

    >>> label(0.834), label(-0.21), label(1.04), label(-12.3), label(0.999), label(-3e5), label(0)
    ('.83', '−.21', '1.0', '−12', '1.0', '≪0', '.00')
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
    own: Collection[str] = (),
) -> Figure:
    """Panels side by side, printed; one below the other on the page.

    Args:
        name: of the figure.
        title: of the figure.
        caption: what stands behind the reading of the marks.
        data: a row per cell, with `COLUMNS`; `score` is missing where `status` is not ok.
        rows: names of the rows, from the top; the column `row` names them.
        panels: titles, and the contestants of each from the left.
        own: contestants that are the user's, whose names stand out.
    """
    drawn = data[COLUMNS].reset_index(drop=True)
    drawn["label"] = [
        MARKS.get(str(status), "?") if pd.isna(score) else label(score)
        for score, status in zip(drawn["score"], drawn["status"], strict=True)
    ]
    shared: dict[str, Any] = {"config": CONFIG, "params": [HIGHLIGHT]}
    rows_of = {
        panel: [row for row in rows if row in set(drawn.loc[drawn["panel"].eq(panel), "row"])] for panel in panels
    }
    names_of_all = [name for names in panels.values() for name in names]
    labels = {name: label for name, label in short(names_of_all).items() if label != name}
    first = next(iter(panels), "")

    def printed() -> dict[str, Any]:
        views = [
            {
                "title": panel,
                "width": _CELL * len(names),
                "height": _ROW * len(rows_of[panel]),
                "layer": _layers(
                    rows_of[panel], names, own, labels, first=panel == first or rows_of[panel] != rows, legend=True
                ),
                "data": {"values": records(drawn[drawn["panel"] == panel])},
            }
            for panel, names in panels.items()
        ]
        return shared | {"$schema": alt.SCHEMA_URL, "hconcat": views, "spacing": 14}

    def shown() -> dict[str, Any]:
        size = {"width": {"step": _CELL}, "height": {"step": _ROW}, "usermeta": {"height": "as it is"}}
        return shared | {"data": {"name": "rows"}, "layer": _layers(None, None, own, labels)} | size

    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}: scores of {', '.join(names_of_all)} on {', '.join(rows)}; the table below has the same numbers.",
        data=drawn,
        printed=printed,
        shown=shown,
        panels=tuple(Panel(panel, {"panel": panel}) for panel in panels),
        columns=1,
    )


def _layers(
    rows: Sequence[str] | None,
    names: Sequence[str] | None,
    own: Collection[str],
    labels: Mapping[str, str],
    first: bool = True,
    legend: bool = False,
) -> list[dict[str, Any]]:
    """Cells and their numbers.

    Args:
        rows: rows in order; None: the order of the data.
        names: columns in order; None: the order of the data.
        own: columns that stand out.
        labels: headings of columns that differ from their names.
        first: whether rows have labels.
        legend: whether there is a legend of colours.
    """
    key = alt.Legend(title="score", gradientLength=_ROW * min(len(rows or ()), 8), orient="right") if legend else None
    scale = alt.Scale(
        domain=list(KNOTS),
        range=[f"#{r:02x}{g:02x}{b:02x}" for r, g, b in KNOTS.values()],
        clamp=True,
        interpolate="rgb",
    )
    side = alt.Axis(
        title=None, labels=first, ticks=False, domain=False, labelLimit=120, labelFontSize=11, labelOverlap=False
    )
    mine = f"indexof({json.dumps(sorted(own))}, datum.value) >= 0"
    top = alt.Axis(
        title=None,
        orient="top",
        labelAngle=-55,
        ticks=False,
        domain=False,
        labelFontSize=11,
        labelOverlap=False,
        labelLimit=105,
        labelExpr=f"{json.dumps(labels)}[datum.value] || datum.label" if labels else alt.Undefined,
        minExtent=86,
        maxExtent=86,
        labelFontWeight=alt.condition(mine, alt.value("bold"), alt.value("normal")),
        labelColor=alt.condition(mine, alt.value(ACCENT), alt.value(INK)),
    )
    x = alt.X(
        "contestant",
        type="nominal",
        axis=top,
        sort=None,
        scale=alt.Scale(domain=list(names)) if names else alt.Undefined,
    )
    y = alt.Y(
        "row",
        type="nominal",
        axis=side,
        sort=None,
        scale=alt.Scale(domain=list(rows)) if rows else alt.Undefined,
    )
    scored = alt.Chart().transform_filter("isValid(datum.score)")
    fill = alt.Color("score", type="quantitative", scale=scale, legend=key)
    low, high = white_beyond()
    ink = alt.condition(
        f"isValid(datum.score) && (datum.score < {low} || datum.score > {high})", alt.value("#fff"), alt.value("#000")
    )
    ends = "format(datum.lowest, '.3f') + ' to ' + format(datum.highest, '.3f')"
    interval = "isValid(datum.low) ? format(datum.low, '.3f') + ' to ' + format(datum.high, '.3f') : 'none'"
    fields = (
        "isValid(datum.score) ? {'title': datum.contestant + ' on ' + datum.row, 'score': format(datum.score, '.3f'), "
        f"'interval': {interval}, 'seeds': datum.runs > 1 ? datum.runs + ', ' + {ends} : datum.runs, "
        "'': datum.reason} : {'title': datum.contestant + ' on ' + datum.row, '': datum.status + ': ' + datum.reason}"
    )
    tooltip = alt.TooltipValue(alt.ExprRef(fields))
    edge: dict[str, Any] = {"stroke": "white", "strokeWidth": 1.5}
    layers = [
        # Every cell, also those that the next layer covers: the first layer says in which order columns come.
        alt.Chart().mark_rect(color=NO_SCORE, **edge).encode(x=x, y=y, tooltip=tooltip),
        scored.mark_rect(**edge).encode(x=x, y=y, color=fill, tooltip=tooltip),
        alt.Chart().mark_text(fontSize=10.5).encode(x=x, y=y, text=alt.Text("label", type="nominal"), color=ink),
    ]
    return [layer(chart) for chart in layers]


def _luminance(rgb: tuple[int, int, int]) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (c / 255 for c in rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
