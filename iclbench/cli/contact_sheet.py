"""`iclbench show glyphs --png FILE`: draw a picture of characters with one row per class and one column per drawing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from iclbench.core import png
from iclbench.core.errors import UsageError
from iclbench.core.files import atomic, check_replaceable
from iclbench.families.images.glyphs import glyphs

CLASSES, DRAWINGS, SIZE = 30, 20, 56
# Grey value of the lines between the drawings.
_LINE_GREY = 200


def write_glyphs(path: Path) -> str:
    """Write the contact sheet, and return a line that describes it.

    Raises:
        UsageError: the file cannot be written.
    """
    # Thirty classes, spread evenly over all 1,623, cover many alphabets.
    classes = range(0, 1623, 1623 // CLASSES)[:CLASSES]
    sheet = framed_grid(glyphs(0, classes, DRAWINGS, SIZE))
    if path.is_dir():
        raise UsageError(
            f"--png {path} is a folder; pass the path of a file, such as {path / 'glyphs.png'}", code="bad-value"
        )
    check_replaceable(path, "a PNG picture", lambda existing: existing.read_bytes().startswith(png.SIGNATURE))
    try:
        with atomic(path) as temporary:
            temporary.write_bytes(png.encode(sheet))
    except OSError as error:
        raise UsageError(
            f"--png {path}: cannot write the file: {error.strerror}; choose another file", code="unreadable-file"
        ) from None
    return f"{path}: {CLASSES} of 1,623 classes (rows), {DRAWINGS} drawings of each (columns)"


def framed_grid(images: UInt8[np.ndarray, "rows columns size size"]) -> UInt8[np.ndarray, "height width"]:
    """Arrange images in a grid, drawn black on white with lines between the images."""
    framed_images = np.pad(255 - images, ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=_LINE_GREY)
    rows, columns, height, width = framed_images.shape
    return framed_images.transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
