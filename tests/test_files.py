"""Files are whole or untouched."""

import os
from pathlib import Path

import pytest

from iclbench.files import atomic


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"), atomic(pipe) as temporary:
        temporary.write_text("new")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_links_are_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    with atomic(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
