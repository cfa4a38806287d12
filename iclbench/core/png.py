"""PNG images in memory, written and read by Pillow."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from jaxtyping import UInt8

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Pixels of the largest image that is read: a few bytes can announce many.
_MOST = 1 << 24


def encode(image: UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]) -> bytes:
    """An 8-bit PNG, grey or red, green and blue; 255 is white."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def decode(data: bytes) -> UInt8[np.ndarray, "height width"]:
    """Read a greyscale PNG of at most 8 bits per pixel: 0 and 1 where it has a single bit, else 0 to 255.

    Raises:
        ValueError: the data is no such image, damaged, or of more than 16,777,216 pixels.
    """
    from PIL import Image

    if not data.startswith(_SIGNATURE):
        raise ValueError("not a PNG file")
    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as image:
            width, height, mode = image.width, image.height, image.mode
            image.verify()  # checksums, which reading the pixels passes over
        if mode in ("1", "L") and width * height <= _MOST:
            with Image.open(BytesIO(data), formats=["PNG"]) as image:
                return np.array(image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError) as error:
        why = "no header" if isinstance(error, Image.UnidentifiedImageError) else error
        raise ValueError(f"a damaged PNG file ({why})") from None
    if mode in ("1", "L"):
        raise ValueError(f"a PNG file of {width} x {height} pixels, more than {_MOST:,}")
    raise ValueError("a PNG file of another kind than greyscale with up to 8 bits per pixel")
