"""The look of the figures: one per contestant, the same on every figure of a report.

Causal backbones have the strong colours of Okabe and Ito (2008), solid lines and filled shapes; backbones that take
their context as a set have other colours, long dashes and hollow shapes; baselines a muted version of the colours of
Tol (2021), thin and dashed; oracles are black. The colours of one kind stay apart under protanopia and deuteranopia (a
test), and no two backbones that come with the package share a shape: nothing hangs on colour alone.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

from iclbench.registry import BACKBONES, Backbones

STRONG = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MUTED = ("#B2455A", "#5A4FA8", "#9A8A2E", "#2F8A57", "#3E8CA8", "#8F4478", "#A0603A", "#6E7F80")
DASHES = ((7, 3), (3, 2), (10, 3, 2, 3), (2, 2))
LONG = (9, 3)
# Width of the line of a backbone of the user's own, and colours that no other has.
WIDE = 3.4
MINE = ("#B00000", "#3D3DFF", "#7F00B2", "#804000")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
GREY = "#B5B5B5"
INK = "#1A1A1A"
ACCENT = "#0B5FA5"  # as in page.css
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "#888",
        "tickColor": "#888",
        "gridColor": "#E8E8E8",
        "labelColor": "#333",
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelOverlap": True,
    },
    "legend": {"labelFontSize": 12, "symbolStrokeWidth": 2, "symbolSize": 250, "labelLimit": 220, "rowPadding": 4},
    "title": {"fontSize": 13, "fontWeight": "bold", "anchor": "start", "color": INK, "offset": 8},
}


def vega_lite() -> str:
    """The version of Vega-Lite that figures are written in.

    >>> vega_lite()[0].isdigit()
    True
    """
    import altair

    return ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])


@dataclass(frozen=True)
class Look:
    """Colour, dash pattern (pixels; empty: solid) and width of a contestant's line; shape of its points, as Vega-Lite
    calls it or as a path, and whether that is an outline; whether a backbone reads its context in order ("causal") or
    as a "set", if that is known; and whether it is the user's own, which stands out."""

    colour: str
    dash: tuple[int, ...] = ()
    width: float = 1.6
    shape: str = "circle"
    hollow: bool = False
    order: str | None = None
    own: bool = False


# Shapes that Vega has not, as paths within a square from -1 to 1.
PATHS = {
    "star": "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    "pentagon": "M0,-1L0.95,-0.31L0.59,0.81L-0.59,0.81L-0.95,-0.31Z",
    "hexagon": "M-0.5,-0.87L0.5,-0.87L1,0L0.5,0.87L-0.5,0.87L-1,0Z",
    "hourglass": "M-0.75,-0.9L0.75,-0.9L-0.75,0.9L0.75,0.9Z",
    "bow-tie": "M-0.9,-0.75L0.9,0.75L0.9,-0.75L-0.9,0.75Z",
    "trapezoid": "M-0.5,-0.7L0.5,-0.7L1,0.7L-1,0.7Z",
    "parallelogram": "M-0.4,-0.7L1,-0.7L0.4,0.7L-1,0.7Z",
    "house": "M0,-1L0.85,-0.1L0.85,0.9L-0.85,0.9L-0.85,-0.1Z",
    "semicircle": "M-0.95,0.5A0.95,0.95,0,0,1,0.95,0.5Z",
    "chevron": "M-0.9,-0.1L0,-0.9L0.9,-0.1L0.9,0.8L0,0L-0.9,0.8Z",
    "arrow": "M0,-1L0.9,0L0.4,0L0.4,0.9L-0.4,0.9L-0.4,0L-0.9,0Z",
    "tee": "M-0.9,-0.85L0.9,-0.85L0.9,-0.25L0.3,-0.25L0.3,0.9L-0.3,0.9L-0.3,-0.25L-0.9,-0.25Z",
    "ell": "M-0.8,-0.9L-0.15,-0.9L-0.15,0.25L0.85,0.25L0.85,0.9L-0.8,0.9Z",
    "kite": "M0,-1L0.75,-0.4L0,1L-0.75,-0.4Z",
    "octagon": "M-0.38,-0.92L0.38,-0.92L0.92,-0.38L0.92,0.38L0.38,0.92L-0.38,0.92L-0.92,0.38L-0.92,-0.38Z",
    "notch": "M-0.85,-0.85L0,-0.25L0.85,-0.85L0.85,0.85L-0.85,0.85Z",
    "stairs": "M-0.9,0.9L-0.9,0.3L-0.3,0.3L-0.3,-0.3L0.3,-0.3L0.3,-0.9L0.9,-0.9L0.9,0.9Z",
    "drop": "M0,-1L0.6,0.1A0.6,0.6,0,1,1,-0.6,0.1Z",
    "slab": "M-1,-0.4L1,-0.4L1,0.4L-1,0.4Z",
    "crown": "M-0.9,0.8L-0.9,-0.7L-0.4,0L0,-0.8L0.4,0L0.9,-0.7L0.9,0.8Z",
    "saltire": "M-0.9,-0.5L-0.5,-0.9L0,-0.4L0.5,-0.9L0.9,-0.5L0.4,0L0.9,0.5L0.5,0.9L0,0.4L-0.5,0.9L-0.9,0.5L-0.4,0Z",
}
# Of variants: the dash says what they are told of positions, or that something else is theirs.
POSITIONS = {"learned": DASHES[1], "sinusoidal": DASHES[2], "rotary": DASHES[3]}
OTHERWISE = (6, 2, 1, 2, 1, 2)


# Colour, shape of the points and kind of shipped backbones; a shape as Vega-Lite or `PATHS` names it. One that is not
# listed has a colour and a dash of `looks`.
LINES: dict[str, tuple[str, str, str]] = {
    "gpt2": ("#0072B2", "circle", "causal"),
    "transformer": ("#56B4E9", "diamond", "causal"),
    "coqe": ("#E69F00", "triangle-down", "causal"),
    "mamba": ("#D55E00", "square", "causal"),
    "s4d": ("#009E73", "triangle-up", "causal"),
    "s4": ("#CC79A7", "cross", "causal"),
    "attention": ("#200726", "octagon", "causal"),
    "linear-attention": ("#1F0ADF", "stairs", "causal"),
    "based": ("#56381B", "slab", "causal"),
    "retnet": ("#7B9655", "tee", "causal"),
    "mamba2": ("#A2265D", "bow-tie", "causal"),
    "gla": ("#9855EA", "arrow", "causal"),
    "deltanet": ("#6B2478", "chevron", "causal"),
    "gated-deltanet": ("#0C55B9", "trapezoid", "causal"),
    "kda": ("#5916C1", "parallelogram", "causal"),
    "rwkv7": ("#546E35", "ell", "causal"),
    "mlstm": ("#6C0A33", "kite", "causal"),
    "lstm": ("#26090B", "notch", "causal"),
    "gru": ("#01264E", "drop", "causal"),
    "hyena": ("#C99744", "semicircle", "causal"),
    "hybrid": ("#11C3CF", "crown", "causal"),
    "mambaformer": ("#1CE199", "house", "causal"),
    "thp": ("#332288", "hourglass", "causal"),
    "cnp": ("#999933", "circle", "set"),
    "two-path-cnp": ("#23AB70", "pentagon", "set"),
    "np": ("#5280A7", "star", "set"),
    "bnp": ("#CDD412", "hexagon", "set"),
    "canp": ("#15706E", "saltire", "set"),
    "anp": ("#133050", "triangle-left", "set"),
    "banp": ("#0A01A9", "bow-tie", "set"),
    "tnp": ("#117733", "square", "set"),
    "tnp-d": ("#68C76C", "trapezoid", "set"),
    "tnp-nd": ("#11C6DD", "parallelogram", "set"),
    "tnp-a": ("#3C2EFB", "house", "set"),
    "pt-tnp": ("#661100", "triangle-up", "set"),
    "eqtnp": ("#7A59C2", "semicircle", "set"),
    "lbanp": ("#5B2C8A", "diamond", "set"),
    "cmanp": ("#8E6CFF", "triangle-down", "set"),
    "cmanp-and": ("#160F52", "chevron", "set"),
    "icicl-cnp": ("#A0A0FF", "cross", "set"),
    "icicl-tnp": ("#003D33", "triangle-right", "set"),
    "cmhp": ("#44AA99", "hourglass", "set"),
}
# Shapes of shipped variants; colour and kind are those of the backbone.
VARIANT_SHAPES = {
    "gpt2-learned": "triangle-right",
    "gpt2-sinusoidal": "triangle-left",
    "gpt2-rotary": "star",
    "coqe-learned": "pentagon",
    "coqe-sinusoidal": "hexagon",
    "coqe-rotary": "saltire",
}


def shipped(registry: Backbones) -> dict[str, Look]:
    """The look of every shipped backbone in `LINES`, the same in every report; variants have the colour of their
    backbone."""
    found = {}
    for name in registry.shipped:
        variant = registry.variant(name)
        if variant.backbone not in LINES:
            continue
        colour, shape, kind = LINES[variant.backbone]
        shape = PATHS.get(shape, shape)
        found[name] = Look(colour, LONG if kind == "set" else (), 2.6, shape, kind == "set", kind)
        if variant.backbone != name:
            dash = POSITIONS.get(str(variant.frozen.get("positions")), OTHERWISE)
            own = VARIANT_SHAPES.get(name, shape)
            found[name] = replace(found[name], dash=dash, shape=PATHS.get(own, own))
    return found


SHIPPED = shipped(BACKBONES)
OWN = {name: look for name, look in SHIPPED.items() if BACKBONES.variant(name).backbone == name}
CAUSAL = {name: look for name, look in OWN.items() if look.order == "causal"}
SETS = {name: look for name, look in OWN.items() if look.order == "set"}
BACKGROUND = Look(GREY, (), 1.0)
ORACLE = Look(INK)
# References that score the same by definition look like rules, not like contestants.
ZERO = Look("#777777", (1, 3), 1.6)
# The baseline that stands beside every number on learning in context, unlike the rule of guessing near it.
NEAREST = Look(MUTED[4], DASHES[0])
FIXED = {"zero": ZERO, "chance": ZERO, "pixel-1nn": NEAREST}


def looks(
    backbones: Collection[str],
    baselines: Iterable[str],
    oracles: Iterable[str],
    orders: Mapping[str, str] | None = None,
) -> dict[str, Look]:
    """A look for every contestant, by name; more backbones than colours differ in their dashes.

    A backbone without a line in `LINES` looks like its kind, by its order in `orders`: causal ones have solid lines and
    filled shapes, set models long dashes and hollow shapes. The colours of the user's own backbones are no other's, and
    their lines are wider.
    """
    baselines = set(baselines)
    own = {name: SHIPPED[name] for name in backbones if name in SHIPPED}
    others = _others(sorted(set(backbones) - set(own)), list(own.values()), orders or {})
    fixed = {name: look for name, look in FIXED.items() if name in {"zero", *baselines}}
    muted = (Look(colour, dash) for dash, colour in _interleaved(MUTED, DASHES))
    dashed = [look for look in muted if look not in fixed.values()]
    black = [ORACLE, *(Look(INK, dash) for dash in DASHES)]
    return (
        {name: dashed[i % len(dashed)] for i, name in enumerate(sorted(baselines))}
        | fixed
        | {name: black[i % len(black)] for i, name in enumerate(sorted(set(oracles)))}
        | others
        | own
    )


def _others(names: list[str], taken: list[Look], orders: Mapping[str, str]) -> dict[str, Look]:
    """Looks of variants and of the user's own backbones: colours and dashes that no other of their kind has."""
    used = {(look.colour, look.dash) for look in taken}
    # Not the dash that looks like that of the other kind.
    dashes = {"set": (LONG, (9, 3, 2, 3), (14, 4)), "causal": ((), *DASHES[1:])}
    colours = {"set": tuple(look.colour for look in SETS.values()), "causal": STRONG}
    found = {}
    for kind, alien in product(dashes, (False, True)):
        pairs = [(colour, dash) for dash, colour in product(dashes[kind], MINE if alien else colours[kind])]
        free = [pair for pair in pairs if pair not in used]
        own = [n for n in names if (orders.get(n) == "set") == (kind == "set") and is_shipped(n) != alien]
        for (name, pair), shape in zip(zip(own, cycle(free), strict=False), cycle(SHAPES), strict=False):
            found[name] = Look(*pair, WIDE if alien else 2.6, shape, kind == "set", orders.get(name), alien)
    return found


def is_shipped(backbone: str) -> bool:
    """Whether a backbone comes with the package; a variant goes by the backbone that its name begins with, and so does
    one that was trained on another task.

    >>> is_shipped("mamba"), is_shipped("gpt2-wide"), is_shipped("tnp@linear"), is_shipped("my-net")
    (True, True, True, False)
    """
    trained, _, _ = backbone.partition("@")
    return any(f"{trained}-".startswith(f"{name}-") for name in BACKBONES.shipped)


def short(names: Collection[str]) -> dict[str, str]:
    """What stands for each name where there is little room: of `package.module:Class` the class, if no other has it.

    >>> short(["mamba", "my_net:One", "my_net:Two", "other:Two"])
    {'mamba': 'mamba', 'my_net:One': 'One', 'my_net:Two': 'my_net:Two', 'other:Two': 'other:Two'}
    """
    ends = {name: name.rpartition(":")[2] for name in names}
    return {name: end if [*ends.values()].count(end) == 1 else name for name, end in ends.items()}


def _interleaved(colours: tuple[str, ...], dashes: tuple[tuple[int, ...], ...]) -> list[tuple[tuple[int, ...], str]]:
    """All pairs, so that neighbours differ in both colour and dash."""
    return [
        (dashes[(i + turn) % len(dashes)], colour) for turn in range(len(dashes)) for i, colour in enumerate(colours)
    ]
