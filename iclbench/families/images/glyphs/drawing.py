"""Drawings of characters: variation of the motor program of a class between drawers and drawings.

A drawing perturbs every parameter of every stroke and the positions of strokes, and slants, stretches and moves the
glyph. One component of the variation is the hand of the drawer, which is the same for all characters of an alphabet.
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

# Relative and absolute standard deviations of the parameters of a stroke between drawings. The names are part of the
# random streams, so renaming a parameter changes all drawings.
_RELATIVE = {"arc": 0.11, "swing": 0.15, "corner": 0.09, "second": 0.09, "hook": 0.13, "length": 0.12}
_ABSOLUTE = {"heading": 0.0135, "arc": 0.016, "at_corner": 0.045, "at_second": 0.045}
_SLIP = 0.021
# Standard deviations of the transformations of a glyph: by hand (alphabet, drawer) and by drawing.
_TURN, _SLANT = (0.05, 0.05), (0.09, 0.05)
_WIDTH, _HEIGHT = (0.11, 0.08), (0.11, 0.08)
_SHIFT = (0.03, 0.035)
# Smallest value and range of a factor that multiplies all deviations. The factor is small for careful and large for
# hasty drawers.
_HASTE = (0.3, 1.3)
# Number of classes that are drawn at once. Their points fit into the processor's cache.
_CHUNK_SIZE = 32

Drawers: TypeAlias = Int[np.ndarray, " drawers"]


def glyphs(
    seed: int,
    classes: int | Sequence[int] | Int[np.ndarray, " _"],
    drawings: int | Sequence[int] | Int[np.ndarray, " _"] = 20,
    size: int = 28,
    *,
    jitter: float = 1.0,
) -> UInt8[np.ndarray, "classes drawings size size"]:
    """Draw characters. A subset is bit-identical to the same part of the full set.

    Args:
        seed: seed of the alphabets.
        classes: number of classes, or the numbers of the classes, which start at 0 and have no upper limit.
        drawings: number of drawings per class, or the numbers of the drawings. Drawing i of every class is by drawer i.
        size: height and width in pixels.
        jitter: factor of the variation between drawings of a class; 0 for no variation.

    Returns:
        Images with ink 255 on paper 0.
    """
    numbers, drawers = _indices(classes), _indices(drawings)
    images = np.empty((len(numbers), len(drawers), size, size), np.uint8)
    for strokes, members in _chunks_by_stroke_count(stroke_counts(seed, numbers)):
        images[members] = ink(*_draw(seed, numbers[members], strokes, drawers, jitter), size)
    return images


def _indices(indices: int | Sequence[int] | np.ndarray) -> Int[np.ndarray, " _"]:
    numbers = np.arange(indices) if isinstance(indices, int) else np.asarray(indices, dtype=np.int64).reshape(-1)
    if (numbers < 0).any():
        raise ValueError(f"classes and drawings are numbered from 0, got {numbers.min()}")
    return numbers


def _chunks_by_stroke_count(counts: Int[np.ndarray, " classes"]) -> Iterator[tuple[int, Int[np.ndarray, " _"]]]:
    """Yield chunks of classes with equal numbers of strokes, so that no masks are needed."""
    for strokes in np.unique(counts):
        members = np.flatnonzero(counts == strokes)
        for start in range(0, len(members), _CHUNK_SIZE):
            yield int(strokes), members[start : start + _CHUNK_SIZE]


def _draw(
    seed: int, classes: Int[np.ndarray, " classes"], strokes: int, drawers: Drawers, jitter: float
) -> tuple[Trace, Trace]:
    """Return the points of all drawings in the unit square, `(classes, drawers, strokes, points)`."""
    program = Strokes(*(value[:, None] for value in programs(seed, classes, strokes)))
    centre, scale = _placement(seed, classes, program)
    c, d, s = classes[:, None, None], drawers[:, None], np.arange(strokes)

    haste = jitter * (_HASTE[0] + _HASTE[1] * uniform(seed, "haste", alphabet_of(classes)[:, None], drawers))

    def deviation(name: str) -> Float[np.ndarray, "classes drawers strokes"]:
        return haste[..., None] * normal(seed, f"drawn {name}", c, d, s)

    parameters = {name: getattr(program, name) * (1 + std * deviation(name)) for name, std in _RELATIVE.items()}
    for name, std in _ABSOLUTE.items():
        parameters[name] = parameters.get(name, getattr(program, name)) + std * deviation(f"{name} offset")
    slips = (_SLIP / scale * deviation(f"slip {axis}") for axis in "xy")
    x, y = trace(program._replace(**parameters), *slips)
    x, y = (x - centre[0][..., None]) * scale[..., None], (y - centre[1][..., None]) * scale[..., None]

    def variation(name: str, spread: tuple[float, float]) -> Float[np.ndarray, "classes drawers 1 1"]:
        hand = normal(seed, f"hand {name}", alphabet_of(classes)[:, None], drawers)
        drawing = normal(seed, f"drawing {name}", classes[:, None], drawers)
        return (haste * (spread[0] * hand + spread[1] * drawing))[..., None, None]

    slant, turn = variation("slant", _SLANT), variation("turn", _TURN)
    x, y = x * (1 + variation("width", _WIDTH)) + slant * y, y * (1 + variation("height", _HEIGHT))
    return x - turn * y + variation("x", _SHIFT) + 0.5, y + turn * x + variation("y", _SHIFT) + 0.5


def _placement(
    seed: int, classes: Int[np.ndarray, " classes"], program: Strokes
) -> tuple[Float[np.ndarray, "2 classes 1 1"], Float[np.ndarray, "classes 1 1"]]:
    """Return the centre of the unperturbed glyph, and the factor that scales the glyph to most of the image. Tiny
    glyphs remain small."""
    trace_points = np.stack(trace(program))
    low, high = trace_points.min((-2, -1)), trace_points.max((-2, -1))
    extent = np.maximum((high - low).max(0), 0.25)
    share = 0.58 + 0.26 * uniform(seed, "size", classes)[:, None]
    return ((low + high) / 2)[..., None], (share / extent)[..., None]
