"""Rasterisation of points to images.

Every point adds ink to its four nearest pixels in proportion to the length of its part of the line. The pen is as wide
as the pen of Omniglot, about 4 of 105 pixels. In small images, where the pen is narrower than about a pixel, the ink of
a pixel is its covered area, as in a downscaled scan. In larger images the line is widened and its edges are sharpened.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Float32, UInt8

from iclbench.families.images.glyphs.strokes import Trace

# Width of the pen relative to the width of the image.
PEN_WIDTH = 0.044


def ink(x: Trace, y: Trace, size: int) -> UInt8[np.ndarray, "*glyphs size size"]:
    """Draw glyphs, given points in the unit square. Points outside are moved to its edge. Ink is 255 and paper is 0."""
    columns, rows = (np.clip(axis * size - 0.5, 0, size - 1.001) for axis in (x, y))
    pen = PEN_WIDTH * size
    # A stroke is at least as long as a dot, whose length is the width of the pen.
    weight = np.maximum(_lengths(columns, rows), pen / x.shape[-1])
    factor = math.ceil(size / 16)  # about one point per pixel
    weight = np.repeat(weight / factor, factor, -1)
    line = _splat(_interpolate(columns, factor), _interpolate(rows, factor), weight, size)
    if pen < 1.25:
        coverage = line * np.float32(pen)
    else:
        # After blurring by half the width of the pen, the profile at the edge of the pen is exp(-1/2) of its maximum.
        sigma = pen / 2
        profile = _blur(line, sigma) * np.float32(sigma * math.sqrt(2 * math.pi))
        coverage = (profile - np.float32(math.exp(-0.5))) * np.float32(pen) + np.float32(0.5)
    return (np.clip(coverage, 0, 1) * 255).astype(np.uint8).reshape(*x.shape[:-2], size, size)


def _lengths(x: Trace, y: Trace) -> Trace:
    """Return half of the distance to the previous point plus half of the distance to the next point."""
    half = np.sqrt(np.square(np.diff(x)) + np.square(np.diff(y))) / 2
    ends = np.zeros_like(x[..., :1])
    return np.concatenate([ends, half], -1) + np.concatenate([half, ends], -1)


def _interpolate(values: Trace, factor: int) -> Float[np.ndarray, "*glyphs strokes fine"]:
    """Replace each point by `factor` points on the straight line to the next point."""
    next_values = np.concatenate([values[..., 1:], values[..., -1:]], -1)
    share = np.arange(factor) / factor
    points = values[..., None] + share * (next_values - values)[..., None]
    return points.reshape(*values.shape[:-1], -1)


def _splat(x: Trace, y: Trace, weight: Trace, size: int) -> Float32[np.ndarray, "count size size"]:
    """Distribute the weight of every point bilinearly to the four nearest pixels."""
    count = math.prod(x.shape[:-2])
    column, row = x.astype(np.int64), y.astype(np.int64)
    column_fraction, row_fraction = x - column, y - row
    glyph_start = np.arange(count).reshape(*x.shape[:-2], 1, 1) * size * size
    pixel = glyph_start + row * size + column
    total = np.zeros(count * size * size)
    for row_offset in (0, 1):
        for column_offset in (0, 1):
            share = (
                (row_fraction if row_offset else 1 - row_fraction)
                * (column_fraction if column_offset else 1 - column_fraction)
                * weight
            )
            total += np.bincount(
                (pixel + row_offset * size + column_offset).ravel(), share.ravel(), minlength=len(total)
            )
    return total.reshape(count, size, size).astype(np.float32)


def _blur(images: Float32[np.ndarray, "count size size"], sigma: float) -> Float32[np.ndarray, "count size size"]:
    """Apply a Gaussian blur along both axes. Unlike in a matrix product, the order of summation is fixed."""
    reach = math.ceil(2.6 * sigma)
    taps = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / sigma))
    taps = np.round(taps / taps.sum(), 9).astype(np.float32)
    size = images.shape[-1]
    for axis in (1, 2):
        padded = np.pad(images, [(0, 0), *((reach, reach) if axis == a else (0, 0) for a in (1, 2))])
        images = np.zeros_like(images)
        for start, tap in enumerate(taps):
            span = slice(start, start + size)
            images += tap * (padded[:, span] if axis == 1 else padded[:, :, span])
    return images
