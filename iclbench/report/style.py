"""Colours, lines and shapes of contestants, which are the same in all figures of a report.

Causal backbones have strong colours (six of them those of Okabe and Ito, 2008), solid lines and filled shapes; set
models have other colours, long dashes and hollow shapes. Baselines have a muted version of the colours of Tol (2021)
and thin dashed lines, and oracles are black. Tests ensure that the colours of one kind differ under protanopia and
deuteranopia, and that all backbones of the package differ in their shapes, so that figures are readable without colour.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

from iclbench.registry import BACKBONES, Backbones

STRONG = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MUTED = ("#B2455A", "#5A4FA8", "#9A8A2E", "#2F8A57", "#3E8CA8", "#8F4478", "#A0603A", "#6E7F80")
DASHES = ((7, 3), (3, 2), (10, 3, 2, 3), (2, 2))
LONG_DASH = (9, 3)
# Line width and colours of user-defined backbones.
USER_WIDTH = 3.4
USER_COLOURS = ("#B00000", "#3D3DFF", "#7F00B2", "#804000")
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
    """The version of Vega-Lite used by all figures.

    >>> vega_lite()[0].isdigit()
    True
    """
    import altair

    return ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])


@dataclass(frozen=True)
class Look:
    """The look of a contestant.

    Attributes:
        colour: colour of line and points.
        dash: dash pattern of the line in pixels; empty for a solid line.
        width: width of the line in pixels.
        shape: shape of the points: the name of a Vega-Lite shape, or an SVG path.
        hollow: whether points are outlines.
        order: context order of a backbone, "causal" or "set"; None if unknown.
        is_user_defined: whether the contestant is a backbone that is not part of the package.
    """

    colour: str
    dash: tuple[int, ...] = ()
    width: float = 1.6
    shape: str = "circle"
    hollow: bool = False
    order: str | None = None
    is_user_defined: bool = False


# Shapes that Vega does not have, as paths within a square from -1 to 1.
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
    "bars": "M-0.9,-0.9L-0.25,-0.9L-0.25,0.9L-0.9,0.9ZM0.25,-0.9L0.9,-0.9L0.9,0.9L0.25,0.9Z",
    "cup": "M-0.9,-0.8L-0.35,-0.8L-0.35,0.25L0.35,0.25L0.35,-0.8L0.9,-0.8L0.9,0.85L-0.9,0.85Z",
    "wedge": "M-0.9,0.9L0.9,0.9L0.9,-0.9Z",
    "spool": "M-0.85,-0.9L0.85,-0.9L0.3,0L0.85,0.9L-0.85,0.9L-0.3,0Z",
    "bolt": "M0.35,-1L-0.7,0.2L-0.05,0.2L-0.35,1L0.7,-0.2L0.05,-0.2Z",
    "saltire": "M-0.9,-0.5L-0.5,-0.9L0,-0.4L0.5,-0.9L0.9,-0.5L0.4,0L0.9,0.5L0.5,0.9L0,0.4L-0.5,0.9L-0.9,0.5L-0.4,0Z",
}
# Dashes of variants by their position encoding, and the dash of other variants.
POSITION_DASHES = {"learned": DASHES[1], "sinusoidal": DASHES[2], "rotary": DASHES[3]}
OTHER_VARIANT_DASH = (6, 2, 1, 2, 1, 2)

# Colour, shape (a name from Vega-Lite or `PATHS`) and context order of shipped backbones. `looks` chooses the look of a
# backbone that is not listed.
BACKBONE_STYLES: dict[str, tuple[str, str, str]] = {
    "gpt2": ("#0072B2", "circle", "causal"),
    "transformer": ("#56B4E9", "diamond", "causal"),
    "coqe": ("#E69F00", "triangle-down", "causal"),
    "mamba": ("#D55E00", "square", "causal"),
    "s4d": ("#009E73", "triangle-up", "causal"),
    "s4": ("#CC79A7", "cross", "causal"),
    "attention": ("#200726", "octagon", "causal"),
    "fox": ("#689EF9", "wedge", "causal"),
    "path": ("#7C40FF", "spool", "causal"),
    "linear-attention": ("#1F0ADF", "stairs", "causal"),
    "based": ("#56381B", "slab", "causal"),
    "retnet": ("#7B9655", "tee", "causal"),
    "mamba2": ("#A2265D", "bow-tie", "causal"),
    "mamba3": ("#28005A", "bolt", "causal"),
    "gla": ("#9855EA", "arrow", "causal"),
    "deltanet": ("#6B2478", "chevron", "causal"),
    "gated-deltanet": ("#0C55B9", "trapezoid", "causal"),
    "gated-deltaproduct": ("#972E00", "bars", "causal"),
    "kda": ("#5916C1", "parallelogram", "causal"),
    "rwkv7": ("#546E35", "ell", "causal"),
    "mesa": ("#7D5C8B", "cup", "causal"),
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
    "cells": ("#99D3AB", "stairs", "set"),
}
# Shapes of shipped variants, which have the colour and the order of their backbone.
VARIANT_SHAPES = {
    "gpt2-learned": "triangle-right",
    "gpt2-sinusoidal": "triangle-left",
    "gpt2-rotary": "star",
    "coqe-learned": "pentagon",
    "coqe-sinusoidal": "hexagon",
    "coqe-rotary": "saltire",
}


def shipped_looks(registry: Backbones) -> dict[str, Look]:
    """The looks of all shipped backbones in `BACKBONE_STYLES`; variants have the colour of their backbone."""
    looks = {}
    for name in registry.builtin_entries:
        variant = registry.variant(name)
        if variant.backbone not in BACKBONE_STYLES:
            continue
        colour, shape, order = BACKBONE_STYLES[variant.backbone]
        shape = PATHS.get(shape, shape)
        looks[name] = Look(colour, LONG_DASH if order == "set" else (), 2.6, shape, order == "set", order)
        if variant.backbone != name:
            dash = POSITION_DASHES.get(str(variant.frozen.get("positions")), OTHER_VARIANT_DASH)
            variant_shape = VARIANT_SHAPES.get(name, shape)
            looks[name] = replace(looks[name], dash=dash, shape=PATHS.get(variant_shape, variant_shape))
    return looks


SHIPPED_LOOKS = shipped_looks(BACKBONES)
ARCHITECTURE_LOOKS = {name: look for name, look in SHIPPED_LOOKS.items() if BACKBONES.variant(name).backbone == name}
CAUSAL_LOOKS = {name: look for name, look in ARCHITECTURE_LOOKS.items() if look.order == "causal"}
SET_LOOKS = {name: look for name, look in ARCHITECTURE_LOOKS.items() if look.order == "set"}
BACKGROUND = Look(GREY, (), 1.0)
ORACLE = Look(INK)
# The look of references with a fixed score, which are drawn like rules.
ZERO = Look("#777777", (1, 3), 1.6)
# The look of the reference for accuracies in context. It must differ from the nearby line for guessing.
NEAREST_NEIGHBOUR = Look(MUTED[4], DASHES[0])
FIXED_LOOKS = {"zero": ZERO, "chance": ZERO, "pixel-1nn": NEAREST_NEIGHBOUR}


def looks(
    backbones: Collection[str],
    baselines: Iterable[str],
    oracles: Iterable[str],
    orders: Mapping[str, str] | None = None,
) -> dict[str, Look]:
    """The look of every contestant, by name. If there are more backbones than colours, they differ in dashes, too.

    A backbone that is not in `BACKBONE_STYLES` looks like others of its order: causal models have solid lines and
    filled shapes, set models long dashes and hollow shapes. User-defined backbones have wider lines, and colours that
    no other contestant has.

    Args:
        backbones: names of the backbones.
        baselines: names of the baselines.
        oracles: names of the oracles.
        orders: context order of backbones, "causal" (the default) or "set".
    """
    baselines = set(baselines)
    shipped_looks_by_name = {name: SHIPPED_LOOKS[name] for name in backbones if name in SHIPPED_LOOKS}
    others = _free_looks(
        sorted(set(backbones) - set(shipped_looks_by_name)), list(shipped_looks_by_name.values()), orders or {}
    )
    fixed_looks = {name: look for name, look in FIXED_LOOKS.items() if name in {"zero", *baselines}}
    muted_looks = (Look(colour, dash) for dash, colour in _interleaved_pairs(MUTED, DASHES))
    dashed_looks = [look for look in muted_looks if look not in fixed_looks.values()]
    black_looks = [ORACLE, *(Look(INK, dash) for dash in DASHES)]
    return (
        {name: dashed_looks[i % len(dashed_looks)] for i, name in enumerate(sorted(baselines))}
        | fixed_looks
        | {name: black_looks[i % len(black_looks)] for i, name in enumerate(sorted(set(oracles)))}
        | others
        | shipped_looks_by_name
    )


def _free_looks(names: list[str], used_looks: list[Look], orders: Mapping[str, str]) -> dict[str, Look]:
    """The looks of backbones that are not in `SHIPPED_LOOKS`, with pairs of colour and dash that are not used yet."""
    used_pairs = {(look.colour, look.dash) for look in used_looks}
    # `DASHES[0]` is omitted, because it resembles the long dash of set models.
    dashes = {"set": (LONG_DASH, (9, 3, 2, 3), (14, 4)), "causal": ((), *DASHES[1:])}
    colours = {"set": tuple(look.colour for look in SET_LOOKS.values()), "causal": STRONG}
    looks = {}
    for order, is_user_defined in product(dashes, (False, True)):
        palette = USER_COLOURS if is_user_defined else colours[order]
        pairs = [(colour, dash) for dash, colour in product(dashes[order], palette)]
        free_pairs = [pair for pair in pairs if pair not in used_pairs]
        group = [n for n in names if (orders.get(n) == "set") == (order == "set") and is_shipped(n) != is_user_defined]
        width = USER_WIDTH if is_user_defined else 2.6
        for (name, pair), shape in zip(zip(group, cycle(free_pairs), strict=False), cycle(SHAPES), strict=False):
            looks[name] = Look(*pair, width, shape, order == "set", orders.get(name), is_user_defined)
    return looks


def is_shipped(backbone: str) -> bool:
    """Whether a backbone is part of the package, including variants and evaluations on another task.

    >>> is_shipped("mamba"), is_shipped("gpt2-wide"), is_shipped("tnp@linear"), is_shipped("my-net")
    (True, True, True, False)
    """
    model, _, _ = backbone.partition("@")
    return any(f"{model}-".startswith(f"{name}-") for name in BACKBONES.builtin_entries)


def short_names(names: Collection[str]) -> dict[str, str]:
    """Short names for narrow columns: the class of `package.module:Class`, if it is unique.

    >>> short_names(["mamba", "my_net:One", "my_net:Two", "other:Two"])
    {'mamba': 'mamba', 'my_net:One': 'One', 'my_net:Two': 'my_net:Two', 'other:Two': 'other:Two'}
    """
    ends = {name: name.rpartition(":")[2] for name in names}
    return {name: end if [*ends.values()].count(end) == 1 else name for name, end in ends.items()}


def _interleaved_pairs(
    colours: tuple[str, ...], dashes: tuple[tuple[int, ...], ...]
) -> list[tuple[tuple[int, ...], str]]:
    """All pairs of dash and colour, ordered so that neighbours differ in both."""
    return [
        (dashes[(i + turn) % len(dashes)], colour) for turn in range(len(dashes)) for i, colour in enumerate(colours)
    ]
