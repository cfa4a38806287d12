"""PNG images without a dependency: the standard library's zlib is all that they need.

Writes 8-bit images, grey or in colour; reads the grey ones of 1 and 8 bits that data sets of characters come in.
Source: the PNG specification (W3C, third edition), sections 5, 9 and 11.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_GREY, _COLOUR = 0, 2


def encode(image: UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]) -> bytes:
    """An 8-bit PNG, grey or red, green and blue; 255 is white."""
    height, width = image.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], 1)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", _HEADER.pack(width, height, 8, _GREY if image.ndim == 2 else _COLOUR, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def decode(data: bytes) -> UInt8[np.ndarray, "height width"]:
    """Read a greyscale PNG of 1 or 8 bits per pixel; values as stored (0 and 1, or 0 to 255).

    Raises:
        ValueError: the data is no such image, or damaged.
    """
    if not data.startswith(_SIGNATURE):
        raise ValueError("not a PNG file")
    header, packed = b"", b""
    for kind, content in _chunks(data):
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            packed += content
    if len(header) != _HEADER.size:
        raise ValueError("a PNG file without a header")
    width, height, depth, colour, _, _, interlaced = _HEADER.unpack(header)
    if depth not in (1, 8) or colour != _GREY or interlaced or not (0 < width < 1 << 15 and 0 < height < 1 << 15):
        raise ValueError("a PNG file of another kind than greyscale with 1 or 8 bits per pixel")
    bytes_per_row = (width * depth + 7) // 8
    try:
        raw = zlib.decompressobj().decompress(packed, height * (bytes_per_row + 1))
    except zlib.error as error:
        raise ValueError(f"a damaged PNG file ({error})") from None
    if len(raw) != height * (bytes_per_row + 1):
        raise ValueError("a PNG file that ends too early")
    lines = np.frombuffer(raw, np.uint8).reshape(height, bytes_per_row + 1)
    rows = _unfiltered(lines[:, 0], lines[:, 1:])
    return np.unpackbits(rows, axis=1, count=width) if depth == 1 else rows


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of every chunk, checked."""
    position = len(_SIGNATURE)
    while position < len(data):
        start = position + 8
        length = int.from_bytes(data[position : position + 4], "big")
        kind, content = data[position + 4 : start], data[start : start + length]
        position = start + length + 4
        if data[position - 4 : position] != struct.pack(">I", zlib.crc32(kind + content)):
            raise ValueError("a damaged PNG file (a checksum is wrong)")
        yield kind, content


def _unfiltered(
    filters: UInt8[np.ndarray, " height"], lines: UInt8[np.ndarray, "height width"]
) -> UInt8[np.ndarray, "height width"]:
    """Undo what each line was stored relative to: nothing, left, above, their mean, or Paeth's choice."""
    if not filters.any():
        return lines
    rows = np.zeros((lines.shape[0] + 1, lines.shape[1] + 1), np.int64)
    for y, (filtered, line) in enumerate(zip(filters.tolist(), lines.tolist(), strict=True), start=1):
        for x, value in enumerate(line, start=1):
            left, above, corner = int(rows[y, x - 1]), int(rows[y - 1, x]), int(rows[y - 1, x - 1])
            match filtered:
                case 0:
                    guess = 0
                case 1:
                    guess = left
                case 2:
                    guess = above
                case 3:
                    guess = (left + above) // 2
                case 4:
                    # The neighbour nearest to left + above - corner, ties in this order.
                    guess = min((left, above, corner), key=lambda v: abs(left + above - corner - v))
                case _:
                    raise ValueError(f"a damaged PNG file (filter {filtered})")
            rows[y, x] = (value + guess) % 256
    return rows[1:, 1:].astype(np.uint8)
