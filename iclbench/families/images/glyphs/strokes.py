"""Computation of the points of strokes in the plane from their parameters.

A pen moves at constant speed, t from 0 to 1, in the direction

    heading + arc·t + swing·sin(2 pi t) + corner·[t > at_corner] + second·[t > at_second] + hook·max(0, (t - .62) / .38)

where `corner` and `second` are the angles of two corners. Angles are in turns (1 = full circle, clockwise in the
image), lengths in units of a glyph's height.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

POINTS = 36

_T = (np.arange(POINTS) + 0.5) / POINTS
_HOOK = np.clip((_T - 0.62) / 0.38, 0, 1)
# Sines and cosines are from a rounded table, which is the same on every machine.
_DIRECTIONS = 4096
_TURN = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
_COS, _SIN = np.round(np.cos(_TURN), 12), np.round(np.sin(_TURN), 12)
_SWING = np.round(np.sin(2 * np.pi * _T), 12)

PerStroke: TypeAlias = Float[np.ndarray, "*glyphs strokes"]
Trace: TypeAlias = Float[np.ndarray, "*glyphs strokes points"]


class Strokes(NamedTuple):
    """The strokes of glyphs in drawing order.

    A stroke after the first is moved so that its point `pivot` is at point `joint` of the stroke `parent` or, if it is
    `floating`, at the offset `away` from the centre of the earlier strokes.
    """

    heading: PerStroke
    arc: PerStroke
    swing: PerStroke
    corner: PerStroke
    second: PerStroke
    hook: PerStroke
    at_corner: PerStroke
    at_second: PerStroke
    length: PerStroke
    parent: Int[np.ndarray, "*glyphs strokes"]
    joint: Int[np.ndarray, "*glyphs strokes"]
    pivot: Int[np.ndarray, "*glyphs strokes"]
    floating: Bool[np.ndarray, "*glyphs strokes"]
    away_x: PerStroke
    away_y: PerStroke


def trace(strokes: Strokes, slip_x: PerStroke | float = 0.0, slip_y: PerStroke | float = 0.0) -> tuple[Trace, Trace]:
    """Return x and y of every point, where y increases downwards. `slip_x` and `slip_y` are offsets of strokes from
    their exact positions."""
    column = Strokes(*(value[..., None] for value in strokes))
    turns = column.heading + column.arc * _T + column.swing * _SWING + column.hook * _HOOK
    turns = turns + column.corner * (column.at_corner < _T) + column.second * (column.at_second < _T)
    # The offset makes the number positive, so that truncation after adding 0.5 rounds to the nearest integer.
    direction = ((turns + 64) * _DIRECTIONS + 0.5).astype(np.int64) % _DIRECTIONS
    step = column.length / POINTS
    x, y = np.cumsum(_COS[direction] * step, -1), np.cumsum(_SIN[direction] * step, -1)
    for i in range(x.shape[-2]):
        for axis, slip, away in ((x, slip_x, strokes.away_x), (y, slip_y, strokes.away_y)):
            pivot = _point(axis[..., i, :], strokes.pivot[..., i])
            position = np.zeros(())
            if i:
                earlier = axis[..., :i, :].reshape(*axis.shape[:-2], i * POINTS)
                # Unlike the mean, the centre of the extent does not depend on the order of summation.
                middle = (earlier.min(-1) + earlier.max(-1)) / 2
                joint = _point(earlier, strokes.parent[..., i] * POINTS + strokes.joint[..., i])
                position = np.where(strokes.floating[..., i], middle + away[..., i], joint)
            slip_offset = np.broadcast_to(slip, axis.shape[:-1])[..., i]
            axis[..., i, :] += (position - pivot + slip_offset)[..., None]
    return x, y


def _point(
    values: Float[np.ndarray, "*glyphs points"], index: Int[np.ndarray, "*#glyphs"]
) -> Float[np.ndarray, "*glyphs"]:
    return np.take_along_axis(values, index[..., None], -1)[..., 0]
