"""Motor programs: the strokes of every character class.

Each class belongs to an alphabet. Alphabets differ in how angular and how complex their characters are. Each alphabet
has a small library of stroke shapes. Half of the strokes of its characters come from this library.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from iclbench.families.images.glyphs.counters import normal, uniform
from iclbench.families.images.glyphs.strokes import POINTS, Strokes

STROKES = 5
# The numbers of characters of the alphabets, repeated cyclically. As in Omniglot, they are between 14 and 55.
ALPHABETS = (14, 16, 20, 22, 24, 26, 26, 26, 28, 33, 40, 41, 42, 43, 46, 47, 48, 52, 55, 20, 24, 26, 30)
# Number of shapes in the library of an alphabet.
LIBRARY_SIZE = 6

# Kinds of stroke, their probabilities in an angular and in a curved alphabet, and their relative lengths.
LINE, ARC, LOOP, S, CORNER, U, Z, HOOK, DOT = range(9)
_ANGULAR = np.array([0.36, 0.07, 0.04, 0.03, 0.22, 0.12, 0.08, 0.05, 0.03])
_CURVED = np.array([0.16, 0.28, 0.14, 0.12, 0.07, 0.04, 0.03, 0.12, 0.04])
_LENGTH = np.array([1.0, 1.35, 1.35, 1.0, 1.25, 1.5, 1.5, 1.0, 1.0])
# Cumulative probabilities of one to four strokes; the other characters have five.
_CUMULATIVE_COUNTS = np.array([0.13, 0.40, 0.70, 0.90])

Classes: TypeAlias = Int[np.ndarray, " classes"]


def alphabet_of(classes: Classes) -> Classes:
    """Return the alphabet to which each class belongs."""
    cycle, character = np.divmod(classes, sum(ALPHABETS))
    return cycle * len(ALPHABETS) + np.searchsorted(np.cumsum(ALPHABETS), character, side="right")


def stroke_counts(seed: int, classes: Classes) -> Classes:
    """Return the number of strokes of each class, from 1 to 5."""
    richness = uniform(seed, "richness", alphabet_of(classes))
    complexity = 0.8 * uniform(seed, "strokes", classes) + 0.3 * richness - 0.06
    return 1 + np.searchsorted(_CUMULATIVE_COUNTS, complexity, side="right")


def programs(seed: int, classes: Classes, strokes: int) -> Strokes:
    """Return the first `strokes` strokes of the classes. Every field is `(classes, strokes)`."""
    c, s = classes[:, None], np.arange(strokes)[None]
    alphabet = np.broadcast_to(alphabet_of(classes)[:, None], (len(classes), strokes))

    def draw(name: str) -> Float[np.ndarray, "classes strokes"]:
        return uniform(seed, name, c, s)

    # Strokes with the same key have the same shape, which is in the library of the alphabet or unique to one stroke.
    library_key = alphabet * LIBRARY_SIZE + (draw("which of the library") * LIBRARY_SIZE).astype(np.int64)
    key = np.where(draw("from the library") < 0.5, library_key, (1 << 40) + c * STROKES + s)
    kind = _kind(uniform(seed, "kind", key), uniform(seed, "curvature", alphabet))
    v, w, z = (uniform(seed, f"shape {i}", key) for i in range(3))
    side = np.where(uniform(seed, "side", key) < 0.5, 1.0, -1.0)

    def is_kind(*kinds: int) -> np.ndarray:
        return np.isin(kind, kinds)

    # A corner is right, obtuse or acute.
    corner = np.where(w < 0.55, 1 / 4, np.where(w < 0.8, 1 / 3 + 0.03 * (z - 0.5), 1 / 6))
    eighth = (draw("direction") * 8).astype(np.int64)
    is_upright = draw("upright") < 0.72
    joint_number = draw("joint")
    # A stroke begins at the start, at the end or at any point of its parent.
    joint = np.where(
        joint_number < 0.24,
        0,
        np.where(joint_number < 0.44, POINTS - 1, (draw("joint within") * POINTS).astype(np.int64)),
    )
    length = (0.30 + 0.42 * draw("length")) * _LENGTH[kind]
    return Strokes(
        heading=np.where(is_upright, eighth // 2 * 2, eighth) / 8 + 0.016 * normal(seed, "heading", c, s),
        arc=side
        * np.select([is_kind(LINE), is_kind(ARC), is_kind(LOOP)], [0.02 * v, 0.19 + 0.37 * v, 0.80 + 0.24 * v], 0.0),
        swing=np.where(is_kind(S), side * (0.14 + 0.16 * v), 0.0),
        corner=side * np.where(is_kind(CORNER, U), corner, np.where(is_kind(Z), 0.36, 0.0)),
        second=side * np.where(is_kind(U), 0.25, np.where(is_kind(Z), -0.36, 0.0)),
        hook=np.where(is_kind(HOOK), side * (0.29 + 0.35 * v), 0.0),
        at_corner=np.where(is_kind(U, Z), 0.28 + 0.14 * z, 0.28 + 0.44 * z),
        at_second=0.60 + 0.14 * v,
        length=np.where(is_kind(DOT), 0.035, length) * np.where(s == 0, 1.2, 1.0),
        parent=(draw("parent") * np.maximum(s, 1)).astype(np.int64),
        joint=joint,
        pivot=np.where(draw("crossing") < 0.30, POINTS // 2, 0),
        floating=(joint_number > 0.80) | is_kind(DOT),
        away_x=0.40 * normal(seed, "away x", c, s),
        away_y=0.40 * normal(seed, "away y", c, s),
    )


def _kind(
    u: Float[np.ndarray, "classes strokes"], curvature: Float[np.ndarray, "classes strokes"]
) -> Int[np.ndarray, "classes strokes"]:
    """Return the kinds of strokes, given uniform numbers. Probabilities are interpolated between the two tables."""
    shares = curvature[..., None] * _CURVED + (1 - curvature[..., None]) * _ANGULAR
    return np.minimum((u[..., None] >= np.cumsum(shares, -1)).sum(-1), DOT)
