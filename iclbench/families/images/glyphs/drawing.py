"""Drawers: what each of them makes of a class's motor program.

A drawing changes every parameter of every stroke a little, lets strokes miss their places, and slants, stretches and
moves the glyph. A part of this is the drawer's own hand, the same for all characters of an alphabet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, UInt8

from iclbench.families.images.glyphs.counters import normal, uniform
from iclbench.families.images.glyphs.programs import alphabet_of, programs, stroke_counts
from iclbench.families.images.glyphs.raster import ink
from iclbench.families.images.glyphs.strokes import Strokes, Trace, trace

# How far a drawing strays from the program: relative and absolute standard deviations of each parameter of a stroke.
_RELATIVE = {"arc": 0.11, "swing": 0.15, "corner": 0.09, "second": 0.09, "hook": 0.13, "length": 0.12}
_ABSOLUTE = {"heading": 0.0135, "arc": 0.016, "at_corner": 0.045, "at_second": 0.045}
_SLIP = 0.021
# Standard deviations of the whole glyph's changes: of the hand (alphabet, drawer), of the single drawing.
_TURN, _SLANT = (0.05, 0.05), (0.09, 0.05)
_WIDTH, _HEIGHT = (0.11, 0.08), (0.11, 0.08)
_SHIFT = (0.03, 0.035)
# Some drawers are careful, some hasty: what all deviations are multiplied by, least and range.
_HASTE = (0.3, 1.3)
# Glyphs drawn at once: their points stay in the processor's cache.
_CHUNK = 32

Drawers: TypeAlias = Int[np.ndarray, " drawers"]


def glyphs(
    seed: int,
    classes: int | Sequence[int] | Int[np.ndarray, " _"],
    drawings: int | Sequence[int] | Int[np.ndarray, " _"] = 20,
    size: int = 28,
    *,
    jitter: float = 1.0,
) -> UInt8[np.ndarray, "classes drawings size size"]:
    """Draw characters; any subset equals the same part of the full set, bit for bit.

    Args:
        seed: another seed, other alphabets.
        classes: how many classes, or which ones, numbered from 0 without end.
        drawings: how many drawings of each, or which ones; drawing i of all classes is by drawer i.
        size: height and width in pixels.
        jitter: how much drawings of a class differ; 0: not at all.

    Returns:
        Images with ink 255 on paper 0.
    """
    numbers, drawers = _indices(classes), _indices(drawings)
    images = np.empty((len(numbers), len(drawers), size, size), np.uint8)
    for strokes, members in _by_strokes(stroke_counts(seed, numbers)):
        images[members] = ink(*_draw(seed, numbers[members], strokes, drawers, jitter), size)
    return images


def _indices(indices: int | Sequence[int] | np.ndarray) -> Int[np.ndarray, " _"]:
    numbers = np.arange(indices) if isinstance(indices, int) else np.asarray(indices, dtype=np.int64).reshape(-1)
    if (numbers < 0).any():
        raise ValueError("classes and drawings are numbered from 0")
    return numbers


def _by_strokes(counts: Int[np.ndarray, " classes"]) -> Iterator[tuple[int, Int[np.ndarray, " _"]]]:
    """Chunks of classes with equally many strokes, so that there is nothing to mask."""
    for strokes in np.unique(counts):
        members = np.flatnonzero(counts == strokes)
        for start in range(0, len(members), _CHUNK):
            yield int(strokes), members[start : start + _CHUNK]


def _draw(
    seed: int, classes: Int[np.ndarray, " classes"], strokes: int, drawers: Drawers, jitter: float
) -> tuple[Trace, Trace]:
    """Points of all drawings within the unit square, `(classes, drawers, strokes, points)`."""
    program = Strokes(*(value[:, None] for value in programs(seed, classes, strokes)))
    middle, scale = _placement(seed, classes, program)
    c, d, s = classes[:, None, None], drawers[:, None], np.arange(strokes)

    haste = jitter * (_HASTE[0] + _HASTE[1] * uniform(seed, "haste", alphabet_of(classes)[:, None], drawers))

    def stray(name: str) -> Float[np.ndarray, "classes drawers strokes"]:
        return haste[..., None] * normal(seed, f"drawn {name}", c, d, s)

    changed = {name: getattr(program, name) * (1 + by * stray(name)) for name, by in _RELATIVE.items()}
    for name, by in _ABSOLUTE.items():
        changed[name] = changed.get(name, getattr(program, name)) + by * stray(f"{name} offset")
    slips = (_SLIP / scale * stray(f"slip {axis}") for axis in "xy")
    x, y = trace(program._replace(**changed), *slips)
    x, y = (x - middle[0][..., None]) * scale[..., None], (y - middle[1][..., None]) * scale[..., None]

    def variation(name: str, spread: tuple[float, float]) -> Float[np.ndarray, "classes drawers 1 1"]:
        hand = normal(seed, f"hand {name}", alphabet_of(classes)[:, None], drawers)
        single = normal(seed, f"drawing {name}", classes[:, None], drawers)
        return (haste * (spread[0] * hand + spread[1] * single))[..., None, None]

    slant, turn = variation("slant", _SLANT), variation("turn", _TURN)
    x, y = x * (1 + variation("width", _WIDTH)) + slant * y, y * (1 + variation("height", _HEIGHT))
    return x - turn * y + variation("x", _SHIFT) + 0.5, y + turn * x + variation("y", _SHIFT) + 0.5


def _placement(
    seed: int, classes: Int[np.ndarray, " classes"], program: Strokes
) -> tuple[Float[np.ndarray, "2 classes 1 1"], Float[np.ndarray, "classes 1 1"]]:
    """Middle of the undisturbed glyph, and what brings it to 56 to 82 % of the page; tiny glyphs stay small."""
    traced = np.stack(trace(program))
    low, high = traced.min((-2, -1)), traced.max((-2, -1))
    extent = np.maximum((high - low).max(0), 0.25)
    share = 0.58 + 0.26 * uniform(seed, "size", classes)[:, None]
    return ((low + high) / 2)[..., None], (share / extent)[..., None]
