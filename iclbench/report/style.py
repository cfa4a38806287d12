"""The look of the figures: one per contestant, the same on every figure of a report.

Backbones get the strong colours of Okabe and Ito (2008), solid and thick; baselines a muted version of the colours of
Tol (2021), thin and dashed; oracles are black. Both palettes stay apart under colour blindness, and dashes differ too,
so that nothing hangs on colour alone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

STRONG = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MUTED = ("#B2455A", "#5A4FA8", "#9A8A2E", "#2F8A57", "#3E8CA8", "#8F4478", "#A0603A", "#6E7F80")
# The same colour in every report, whoever else is in it.
OWN = {"gpt2": STRONG[0], "mamba": STRONG[1], "s4d": STRONG[2], "s4": STRONG[3]}
DASHES = ((7, 3), (3, 2), (10, 3, 2, 3), (2, 2))
GREY = "#B5B5B5"
INK = "#1A1A1A"
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "#888", "tickColor": "#888", "gridColor": "#E8E8E8", "labelColor": "#333", "titleColor": INK,
        "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "titlePadding": 8, "labelOverlap": True,
    },
    "legend": {"labelFontSize": 12, "symbolStrokeWidth": 2, "symbolSize": 250, "labelLimit": 220, "rowPadding": 4},
    "title": {"fontSize": 13, "fontWeight": "bold", "anchor": "start", "color": INK, "offset": 8},
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Colour, dash pattern (pixels; empty: solid) and width of a contestant's line."""

    colour: str
    dash: tuple[int, ...] = ()
    width: float = 1.6


BACKGROUND = Look(GREY, (), 1.0)
ORACLE = Look(INK)
# References that score the same by definition look like rules, not like contestants.
ZERO = Look("#777777", (1, 3), 1.6)
# The baseline that stands beside every number on learning in context, unlike the rule of guessing near it.
NEAREST = Look(MUTED[4], DASHES[0])
FIXED = {"zero": ZERO, "chance": ZERO, "pixel-1nn": NEAREST}


def looks(backbones: Collection[str], baselines: Iterable[str], oracles: Iterable[str]) -> dict[str, Look]:
    """A look for every contestant, by name; more backbones than colours differ in their dashes."""
    baselines = set(baselines)
    own = {name: Look(OWN[name], (), 2.6) for name in backbones if name in OWN}
    solid = [Look(colour, dash, 2.6) for dash, colour in product(((), *DASHES), STRONG)]
    free = [look for look in solid if look not in own.values()]
    others = sorted(set(backbones) - set(own))
    fixed = {name: look for name, look in FIXED.items() if name in {"zero", *baselines}}
    pairs = (Look(colour, dash) for dash, colour in _interleaved(MUTED, DASHES))
    dashed = [look for look in pairs if look not in fixed.values()]
    black = [ORACLE, *(Look(INK, dash) for dash in DASHES)]
    return (
        {name: dashed[i % len(dashed)] for i, name in enumerate(sorted(baselines))}
        | fixed
        | {name: black[i % len(black)] for i, name in enumerate(sorted(set(oracles)))}
        | {name: free[i % len(free)] for i, name in enumerate(others)}
        | own
    )


def _interleaved(colours: tuple[str, ...], dashes: tuple[tuple[int, ...], ...]) -> list[tuple[tuple[int, ...], str]]:
    """All pairs, so that neighbours differ in both colour and dash."""
    return [
        (dashes[(i + turn) % len(dashes)], colour) for turn in range(len(dashes)) for i, colour in enumerate(colours)
    ]
