"""PNG images in memory, written and read by Pillow."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
from jaxtyping import UInt8

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Pixels of the largest image that is read: a few bytes can announce many.
_MOST = 1 << 24


def encode(image: UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]) -> bytes:
    """An 8-bit PNG, grey or red, green and blue; 255 is white."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


# Where the seven passes of an interlaced image begin, and their steps (PNG specification, 8.2).
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def _expected(data: bytes) -> int:
    """Bytes of the rows that the header of a greyscale image announces, each behind the number of its filter."""
    width, height, bits, interlaced = *struct.unpack(">IIB", data[16:25]), data[28]
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes]
    return sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns > 0 and rows > 0)


def _inflated(data: bytes) -> int:
    """Bytes of the rows that are there, whose chunks Pillow has verified; not more than are expected are made."""
    inflater, size_read, offset, expected_size = zlib.decompressobj(), 0, len(SIGNATURE), _expected(data)
    while offset + 8 <= len(data) and size_read < expected_size:
        size, kind = struct.unpack(">I4s", data[offset : offset + 8])
        if kind == b"IDAT":
            size_read += len(inflater.decompress(data[offset + 8 : offset + 8 + size], expected_size - size_read))
        offset += size + 12
    return size_read


def decode(data: bytes) -> UInt8[np.ndarray, "height width"]:
    """Read a greyscale PNG of at most 8 bits per pixel: 0 and 1 where it has a single bit, else 0 to 255.

    Raises:
        ValueError: the data is no such image, damaged, or of more than 16,777,216 pixels.
    """
    from PIL import Image

    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG file")
    bombs = Image.DecompressionBombError, Image.DecompressionBombWarning  # of images that announce very many pixels
    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as image:
            width, height, mode = image.width, image.height, image.mode
            image.verify()  # checksums, which reading the pixels passes over
        if mode in ("1", "L") and width * height <= _MOST:
            if _inflated(data) < _expected(data):
                raise ValueError("it ends too early")
            with Image.open(BytesIO(data), formats=["PNG"]) as image:
                return np.array(image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, IndexError, zlib.error, *bombs) as error:
        reason = "no header" if isinstance(error, Image.UnidentifiedImageError) else error
        raise ValueError(f"a damaged PNG file ({reason})") from None
    if mode in ("1", "L"):
        raise ValueError(f"a PNG file of {width} x {height} pixels, more than {_MOST:,}")
    raise ValueError("a PNG file of another kind than greyscale with up to 8 bits per pixel")
