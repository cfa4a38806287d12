"""The idx files of MNIST and EMNIST: the right array, or one clear line."""

import gzip
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iclbench.core.errors import DataError
from iclbench.families.images.idx_file import read_idx

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + IMAGES.tobytes()


def read(folder):
    return read_idx(folder, "images", 3, "the Example database")


@pytest.mark.parametrize("packed", [True, False])
def test_plain_and_packed_files_hold_the_same_array(tmp_path, packed):
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(CONTENT, mtime=0) if packed else CONTENT)
    assert np.array_equal(read(tmp_path), IMAGES)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images", b"", "starts with ''"),
        (
            "images",
            b"\x00\x00\x08\x01" + CONTENT[4:],
            r"in 3 dimension\(s\): it starts with '00000801', expected '000008",
        ),
        ("images", b"\x00\x00\x0d\x03" + CONTENT[4:], "starts with '00000d03'"),
        ("images", b"<html>not found</html>", "starts with '3c68746d'"),
        ("images", CONTENT[:10], "ends within its header"),
        ("images", CONTENT[:-1], "ends before the 2 x 3 x 4 bytes its header announces; put the files of the Example"),
        ("images", CONTENT[:4] + b"\x00\x00\x02\x00" * 3, "ends before the 512 x 512 x 512 bytes"),
        ("images", CONTENT[:4] + b"\xff" * 30, "announces .* TiB, more than the 1.00 GiB"),
        ("images", CONTENT + b"\x00", "goes on after the 2 x 3 x 4 bytes"),
        ("images.gz", CONTENT, "is damaged.*gzip"),
        ("images.gz", gzip.compress(CONTENT, mtime=0)[:-12], "is damaged"),
        ("images.gz", gzip.compress(CONTENT, mtime=0)[:-8] + bytes(8), "is damaged"),
        ("other", CONTENT, r"images.gz is not there; put the files of the Example database into .*--data-dir"),
    ],
)
def test_a_bad_file_is_one_clear_line_that_names_it(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path)
    assert str(tmp_path / "images") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path, suffix):
    os.mkfifo(tmp_path / f"images{suffix}")
    with pytest.raises(DataError, match="pipe"):
        read_idx(tmp_path, "images", 3, "home")


def test_a_folder_in_the_place_of_a_file_is_one_clear_line(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*directory"):
        read(tmp_path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.integers(0, len(CONTENT)), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path, tail, kept, packed):
    content = CONTENT[:kept] + tail
    (tmp_path / "images.gz").write_bytes(gzip.compress(content, mtime=0) if packed else content)
    try:
        assert read(tmp_path).ndim == 3
    except DataError as error:
        assert len(str(error).splitlines()) == 1
