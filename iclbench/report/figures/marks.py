"""Encodings for all figures: highlighting, and the look of a contestant as colour, dash and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from iclbench.report.style import BACKGROUND, Look

# The parameter `highlight` is a list of the names selected in the page's legend, or null. Other contestants fade. The
# value is a list and not a text, because a name may be part of another name.
HIGHLIGHT: dict[str, Any] = {"name": "highlight", "value": None}
IS_HIGHLIGHTED = "highlight === null || indexof(highlight, datum.contestant) >= 0"


def highlighted_opacity(full: float, faded: float | None = None) -> alt.OpacityValue:
    """The opacity `full` for highlighted contestants, and the opacity `faded` for others (default: 15 % of `full`)."""
    faded = 0.15 * full if faded is None else faded
    return alt.OpacityValue(faded, condition={"test": IS_HIGHLIGHTED, "value": full})


class Marks:
    """Encodings of the looks of contestants; `legend` adds a legend, for files without the page's legend."""

    def __init__(self, looks: Mapping[str, Look], legend: bool, symbols: str = "stroke") -> None:
        names = [name for name, look in looks.items() if look != BACKGROUND]
        line_legend = alt.Legend(title=None, values=names, symbolType=symbols, symbolOpacity=1) if legend else None

        def by_contestant(channel: type, values: list[Any], legend: alt.Legend | None = line_legend) -> Any:
            scale = alt.Scale(domain=list(looks), range=values)
            return channel("contestant", type="nominal", scale=scale, legend=legend)

        colours = [look.colour for look in looks.values()]
        self.colour = by_contestant(alt.Color, colours)
        self.dash = by_contestant(alt.StrokeDash, [list(look.dash) or [1, 0] for look in looks.values()])
        # Points have an outline in the contestant's colour and are filled with it or with white.
        point_legend = alt.Legend(title=None, values=names, symbolOpacity=1) if legend else None
        fills = ["#ffffff" if look.hollow else look.colour for look in looks.values()]
        self.stroke = by_contestant(alt.Stroke, colours, point_legend)
        self.fill = by_contestant(alt.Fill, fills, point_legend)
        self.shape = by_contestant(alt.Shape, [look.shape for look in looks.values()], point_legend)
        self.points = {"stroke": self.stroke, "fill": self.fill, "shape": self.shape}
