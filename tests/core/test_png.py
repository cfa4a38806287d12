"""PNG files: encoding, decoding, the filters of the specification, and damaged files."""

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
    # Real files have several data chunks, and chunks that a reader ignores.
    parts = [chunk(b"IHDR", header), chunk(b"tIME", bytes(7)), chunk(b"IDAT", packed[:5]), chunk(b"IDAT", packed[5:])]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


@settings(deadline=None, max_examples=30)
@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=20)))
def test_decode_is_the_inverse_of_encode(image):
    assert np.array_equal(png.decode(png.encode(image)), image)


def test_images_of_one_bit_per_pixel_are_decoded():
    bits = np.random.default_rng(1).integers(0, 2, (4, 13), dtype=np.uint8)
    raw = b"".join(b"\x00" + np.packbits(row).tobytes() for row in bits)
    assert np.array_equal(png.decode(file_of(13, 4, 1, raw)), bits)


def filter_rows(image, kind):
    """Filter the rows naively, as in section 9 of the specification."""
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
def test_all_filters_are_decoded(kind):
    assert np.array_equal(png.decode(file_of(7, 5, 8, filter_rows(GREY, kind))), GREY)


def test_colour_images_have_three_bytes_per_pixel():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = png.encode(image)
    assert struct.unpack(">IIBB", data[16:26]) == (4, 2, 8, 2)
    with Image.open(BytesIO(data)) as decoded:
        assert np.array_equal(np.asarray(decoded), image)


def with_wrong_checksum(data):
    """Change the checksum of the pixels, which is in the four bytes before the last chunk (of twelve bytes)."""
    return data[:-13] + bytes([data[-13] ^ 1]) + data[-12:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a",
        png.encode(GREY)[:8],
        png.encode(GREY)[:45],
        png.encode(GREY)[:-20],
        png.encode(GREY).replace(b"IDAT", b"IDAU"),
        with_wrong_checksum(png.encode(GREY)),
        file_of(7, 5, 8, filter_rows(GREY, 0)).replace(chunk(b"tIME", bytes(7)), chunk(b"pHYs", b"")),
        file_of(7, 5, 8, filter_rows(GREY, 0)).replace(chunk(b"tIME", bytes(7)), chunk(b"tRNS", b"")),
        file_of(7, 5, 8, filter_rows(GREY, 0)[:-1]),
        file_of(7, 5, 8, b"\x07" + bytes(7) + bytes(32)),
        file_of(7, 5, 16, bytes(75)),
        file_of(7, 5, 8, filter_rows(GREY, 0), colour=2),
        file_of(30000, 30000, 8, bytes(4000)),
    ],
    ids=[
        "empty",
        "gif",
        "signature-only",
        "truncated-header",
        "truncated",
        "no-data",
        "checksum",
        "bad-pHYs",
        "bad-tRNS",
        "missing-byte",
        "bad-filter",
        "16-bits",
        "colour",
        "bomb",
    ],
)
def test_damaged_and_unsupported_files_are_refused(data):
    with pytest.raises(ValueError, match="PNG"):
        png.decode(data)


def test_an_image_with_too_many_pixels_is_refused():
    with pytest.raises(ValueError, match=r"8000 x 8000 .*16,777,216"):
        png.decode(file_of(8000, 8000, 1, bytes(4000)))


@settings(deadline=None)
@given(st.integers(8, 90), st.binary(min_size=1, max_size=8))
def test_a_file_with_random_changes_is_decoded_or_refused(position, change):
    data = png.encode(GREY)
    try:
        png.decode(data[:position] + change + data[position + len(change) :])
    except ValueError as error:
        assert "PNG" in str(error)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("interlaced", [False, True])
def test_an_image_with_fewer_rows_than_its_header_states_is_refused(bits: int, interlaced: bool) -> None:
    """The checksums are correct and the compressed stream is complete. Only the number of rows is wrong."""
    assert png.decode(black_image(8, 8, bits, interlaced)).shape == (8, 8)
    for stated_height in (9, 20):
        with pytest.raises(ValueError, match="PNG"):
            png.decode(black_image(8, 8, bits, interlaced, stated_height=stated_height))


def black_image(width: int, height: int, bits: int, interlaced: bool, stated_height: int | None = None) -> bytes:
    """Encode a black image whose header may state another height."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for x, y, dx, dy in passes if interlaced else [(0, 0, 1, 1)]:
        for _ in range(y, height, dy):
            columns = len(range(x, width, dx))
            if columns:
                rows += b"\0" * (1 + math.ceil(columns * bits / 8))
    return file_of(width, stated_height or height, bits, rows, interlaced=int(interlaced))
