"""What all figures share: who is lit, and a contestant's look as colour, dash and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from iclbench.report.style import BACKGROUND, Look

# A parameter `highlight` holds the names that the page's legend has picked, or null; everybody else then fades. A name
# may be within another one, so it is looked for in a list.
HIGHLIGHT: dict[str, Any] = {"name": "highlight", "value": None}
LIT = "highlight === null || indexof(highlight, datum.contestant) >= 0"


def lit(full: float, faded: float | None = None) -> alt.OpacityValue:
    """An opacity for those who are lit, another one (as a rule a seventh of it) for all others."""
    return alt.OpacityValue(0.15 * full if faded is None else faded, condition={"test": LIT, "value": full})


class Marks:
    """Encodings that give every contestant its look; `legend` adds one, for figures without a page around them."""

    def __init__(self, looks: Mapping[str, Look], legend: bool, symbols: str = "stroke") -> None:
        named = [name for name, look in looks.items() if look != BACKGROUND]
        key = alt.Legend(title=None, values=named, symbolType=symbols, symbolOpacity=1) if legend else None

        def by_contestant(channel: type, values: list[Any], key: alt.Legend | None = key) -> Any:
            return channel("contestant", type="nominal", scale=alt.Scale(domain=list(looks), range=values), legend=key)

        colours = [look.colour for look in looks.values()]
        self.colour = by_contestant(alt.Color, colours)
        self.dash = by_contestant(alt.StrokeDash, [list(look.dash) or [1, 0] for look in looks.values()])
        # Points: an outline in the contestant's colour, filled with it or with white. Their legend shows the shapes.
        shapes = alt.Legend(title=None, values=named, symbolOpacity=1) if legend else None
        inks = ["#ffffff" if look.hollow else look.colour for look in looks.values()]
        self.stroke = by_contestant(alt.Stroke, colours, shapes)
        self.fill = by_contestant(alt.Fill, inks, shapes)
        self.shape = by_contestant(alt.Shape, [look.shape for look in looks.values()], shapes)
        self.points = {"stroke": self.stroke, "fill": self.fill, "shape": self.shape}
