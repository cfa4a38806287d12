"""PNG files: what is written can be read, filters as the specification defines them, damage is an error."""

import math
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from iclbench.core import png

GREY = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def file_of(width, height, depth, raw, colour=0, interlaced=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    packed = zlib.compress(raw)
    # Two data chunks and one that nobody needs, as real files have them.
    parts = [chunk(b"IHDR", header), chunk(b"tIME", bytes(7)), chunk(b"IDAT", packed[:5]), chunk(b"IDAT", packed[5:])]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


@settings(deadline=None, max_examples=30)
@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=20)))
def test_what_is_written_is_read(image):
    assert np.array_equal(png.decode(png.encode(image)), image)


def test_one_bit_images_are_rows_of_bits():
    bits = np.random.default_rng(1).integers(0, 2, (4, 13), dtype=np.uint8)
    raw = b"".join(b"\x00" + np.packbits(row).tobytes() for row in bits)
    assert np.array_equal(png.decode(file_of(13, 4, 1, raw)), bits)


def filtered(image, kind):
    """The naive encoder of section 9 of the specification."""
    lines = b""
    for y, row in enumerate(image.astype(int)):
        lines += bytes([kind])
        for x, value in enumerate(row):
            a = int(row[x - 1]) if x else 0
            b = int(image[y - 1, x]) if y else 0
            c = int(image[y - 1, x - 1]) if x and y else 0
            p = a + b - c
            pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
            paeth = a if pa <= pb and pa <= pc else b if pb <= pc else c
            lines += bytes([(int(value) - (0, a, b, (a + b) // 2, paeth)[kind]) % 256])
    return lines


@pytest.mark.parametrize("kind", range(5))
def test_every_filter_is_undone(kind):
    assert np.array_equal(png.decode(file_of(7, 5, 8, filtered(GREY, kind))), GREY)


def test_colours_are_three_bytes_per_pixel():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = png.encode(image)
    assert struct.unpack(">IIBB", data[16:26]) == (4, 2, 8, 2)
    with Image.open(BytesIO(data)) as found:
        assert np.array_equal(np.asarray(found), image)


def checksum_changed(data):
    """That of the pixels: four bytes before the last chunk, which has twelve."""
    return data[:-13] + bytes([data[-13] ^ 1]) + data[-12:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a PNG"),
        (b"GIF89a", "not a PNG"),
        (png.encode(GREY)[:8], "damaged .*no header"),
        (png.encode(GREY)[:45], "damaged"),
        (png.encode(GREY)[:-20], "damaged"),
        (png.encode(GREY).replace(b"IDAT", b"IDAU"), "damaged"),
        (checksum_changed(png.encode(GREY)), "damaged .*checksum"),
        (file_of(7, 5, 8, filtered(GREY, 0)).replace(chunk(b"tIME", bytes(7)), chunk(b"pHYs", b"")), "damaged"),
        (file_of(7, 5, 8, filtered(GREY, 0)).replace(chunk(b"tIME", bytes(7)), chunk(b"tRNS", b"")), "damaged"),
        (file_of(7, 5, 8, filtered(GREY, 0)[:-1]), "damaged .*(truncated|too early)"),
        (file_of(7, 5, 8, b"\x07" + bytes(7) + bytes(32)), "damaged"),
        (file_of(7, 5, 16, bytes(75)), "another kind"),
        (file_of(7, 5, 8, filtered(GREY, 0), colour=2), "another kind"),
        (file_of(8000, 8000, 1, bytes(4000)), "8000 x 8000 pixels, more than 16,777,216"),
        (file_of(30000, 30000, 8, bytes(4000)), "damaged .*bomb"),
    ],
)
def test_damage_is_an_error(data, message):
    with pytest.raises(ValueError, match=message):
        png.decode(data)


@settings(deadline=None)
@given(st.integers(8, 90), st.binary(min_size=1, max_size=8))
def test_any_damage_is_read_or_refused(place, change):
    data = png.encode(GREY)
    try:
        png.decode(data[:place] + change + data[place + len(change) :])
    except ValueError as error:
        assert "PNG" in str(error)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("interlaced", [False, True])
def test_fewer_rows_than_the_header_announces_are_no_image(bits: int, interlaced: bool) -> None:
    """With sound checksums and a complete stream: only their number is wrong."""
    whole = _file(8, 8, bits, interlaced)
    assert png.decode(whole).shape == (8, 8)
    for taller in (9, 20):
        with pytest.raises(ValueError, match="ends too early"):
            png.decode(_file(8, 8, bits, interlaced, announced=taller))


def _file(width: int, height: int, bits: int, interlaced: bool, announced: int | None = None) -> bytes:
    """A black image, of which the header may say that it is taller."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for x, y, dx, dy in passes if interlaced else [(0, 0, 1, 1)]:
        for _ in range(y, height, dy):
            columns = len(range(x, width, dx))
            if columns:
                rows += b"\0" * (1 + math.ceil(columns * bits / 8))
    header = struct.pack(">IIBBBBB", width, announced or height, bits, 0, 0, 0, int(interlaced))
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
