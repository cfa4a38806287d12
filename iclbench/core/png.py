"""Encode and decode PNG images in memory with Pillow."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
from jaxtyping import UInt8

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Maximum number of pixels of a decoded image. A file of a few bytes can declare more pixels than fit into memory.
_MAX_PIXELS = 1 << 24


def encode(image: UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]) -> bytes:
    """Encode a greyscale or RGB image as an 8-bit PNG file. The value 255 is white."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


# Starts and steps of the seven passes of an interlaced image (PNG specification, 8.2).
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def _expected_size(data: bytes) -> int:
    """Return the size in bytes of the decompressed rows, as declared in the header of a greyscale image. Each row has a
    filter byte."""
    width, height, bits, interlaced = *struct.unpack(">IIB", data[16:25]), data[28]
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes]
    return sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns > 0 and rows > 0)


def _inflated_size(data: bytes) -> int:
    """Return the size in bytes of the decompressed rows, up to the expected size. Pillow must have verified the
    chunks."""
    inflater, size_read, offset, expected_size = zlib.decompressobj(), 0, len(SIGNATURE), _expected_size(data)
    while offset + 8 <= len(data) and size_read < expected_size:
        size, kind = struct.unpack(">I4s", data[offset : offset + 8])
        if kind == b"IDAT":
            size_read += len(inflater.decompress(data[offset + 8 : offset + 8 + size], expected_size - size_read))
        offset += size + 12
    return size_read


def decode(data: bytes) -> UInt8[np.ndarray, "height width"]:
    """Decode a greyscale PNG file with at most 8 bits per pixel. Values are 0 and 1 for one bit per pixel, otherwise 0
    to 255.

    Raises:
        ValueError: the data are not such an image, are damaged, or have more than 16,777,216 pixels.
    """
    from PIL import Image

    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG file")
    too_many_pixels = Image.DecompressionBombError, Image.DecompressionBombWarning
    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as image:
            width, height, mode = image.width, image.height, image.mode
            image.verify()  # verify the checksums, which are ignored when the pixels are read
        if mode in ("1", "L") and width * height <= _MAX_PIXELS:
            if _inflated_size(data) < _expected_size(data):
                raise ValueError("it ends too early")
            with Image.open(BytesIO(data), formats=["PNG"]) as image:
                return np.array(image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, IndexError, zlib.error, *too_many_pixels) as error:
        reason = "no header" if isinstance(error, Image.UnidentifiedImageError) else error
        raise ValueError(f"a damaged PNG file ({reason})") from None
    if mode in ("1", "L"):
        raise ValueError(f"a PNG file of {width} x {height} pixels, more than {_MAX_PIXELS:,}")
    raise ValueError("a PNG file that is not greyscale with at most 8 bits per pixel")
