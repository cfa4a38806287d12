"""Reading the idx files of MNIST and EMNIST, and refusing other files."""

import gzip
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iclbench.core.errors import DataError
from iclbench.families.images.idx_file import read_idx
from tests.refusals import refused

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + IMAGES.tobytes()


def read(folder):
    return read_idx(folder, "images", 3, "the Example database")


@pytest.mark.parametrize("is_compressed", [True, False])
def test_plain_and_compressed_files_give_the_same_array(tmp_path, is_compressed):
    path = tmp_path / ("images.gz" if is_compressed else "images")
    path.write_bytes(gzip.compress(CONTENT, mtime=0) if is_compressed else CONTENT)
    assert np.array_equal(read(tmp_path), IMAGES)


@pytest.mark.parametrize(
    ("name", "content", "code", "names"),
    [
        ("images", b"", "bad-syntax", ["''"]),
        ("images", b"\x00\x00\x08\x01" + CONTENT[4:], "bad-syntax", [3, "'00000801'", "'00000803'"]),
        ("images", b"\x00\x00\x0d\x03" + CONTENT[4:], "bad-syntax", ["'00000d03'"]),
        ("images", b"<html>not found</html>", "bad-syntax", ["'3c68746d'"]),
        ("images", CONTENT[:10], "unreadable-file", []),
        ("images", CONTENT[:-1], "unreadable-file", ["shorter", "2 x 3 x 4", "the Example database"]),
        ("images", CONTENT[:4] + b"\x00\x00\x02\x00" * 3, "unreadable-file", ["shorter", "512 x 512 x 512"]),
        ("images", CONTENT[:4] + b"\xff" * 30, "too-large", ["1.00 GiB"]),
        ("images", CONTENT + b"\x00", "unreadable-file", ["longer", "2 x 3 x 4"]),
        ("images.gz", CONTENT, "unreadable-file", ["gzip"]),
        ("images.gz", gzip.compress(CONTENT, mtime=0)[:-12], "unreadable-file", []),
        ("images.gz", gzip.compress(CONTENT, mtime=0)[:-8] + bytes(8), "unreadable-file", []),
        ("other", CONTENT, "missing-data", ["images.gz", "the Example database", "--data-dir"]),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, code, names):
    (tmp_path / name).write_bytes(content)
    with refused(code, tmp_path / "images", *names):
        read(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_pipe_is_refused(tmp_path, suffix):
    os.mkfifo(tmp_path / f"images{suffix}")
    with refused("unreadable-file", tmp_path / f"images{suffix}", "pipe"):
        read(tmp_path)


def test_a_folder_instead_of_a_file_is_refused(tmp_path):
    (tmp_path / "images").mkdir()
    with refused("unreadable-file", tmp_path / "images"):
        read(tmp_path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.integers(0, len(CONTENT)), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path, tail, head_size, is_compressed):
    content = CONTENT[:head_size] + tail
    (tmp_path / "images.gz").write_bytes(gzip.compress(content, mtime=0) if is_compressed else content)
    try:
        assert read(tmp_path).ndim == 3
    except DataError as error:
        assert len(str(error).splitlines()) == 1
