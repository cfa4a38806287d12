"""Files are whole or untouched."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from iclbench.core import digests
from iclbench.core.files import atomic, digest_path, remove_leftovers, save_tensors
from iclbench.store.runs import recorded_digest


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


def test_folders_are_synced_as_well_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a power failure may forget the name of a file whose bytes are on the disk."""
    synced: list[tuple[Path, bool]] = []
    path = tmp_path / "new" / "folder" / "file"

    def fsync(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic(path) as temporary:
        temporary.write_text("new")
    assert {(tmp_path, False), (tmp_path / "new", False), (temporary, False)} <= set(synced), "before it is renamed"
    assert synced[-1] == (path.parent, True)


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with atomic(tmp_path / "file") as temporary:
        temporary.write_text("new")
        left = temporary.name
    for name in (left, left.replace("tmp", "txt"), ".file.tmp", "file.1.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", left.replace("tmp", "txt"), ".file.tmp", "file.1.tmp"}


def test_the_same_tensors_and_metadata_are_the_same_bytes(tmp_path: Path) -> None:
    metadata = {f"key {i}": f"\u00e4 '\"\\ \n {i}" for i in range(9)}
    tensors = {"a": torch.arange(3), "b": torch.ones(2, 2)}
    for name in ("one", "two", "three"):
        save_tensors(tmp_path / name, tensors, metadata)
    assert len({(tmp_path / name).read_bytes() for name in ("one", "two", "three")}) == 1
    with safe_open(tmp_path / "one", framework="pt") as file:
        assert file.metadata() == metadata and torch.equal(file.get_tensor("b"), tensors["b"])


@pytest.mark.parametrize("files_renamed", [0, 1, 2, 3])
def test_weights_and_the_digest_beside_them_fit_wherever_their_writer_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_renamed: int
) -> None:
    path = tmp_path / "w.safetensors"
    save_tensors(path, {"a": torch.zeros(3)}, {}, digest=True)
    replace, left = Path.replace, iter(range(files_renamed))

    def killed(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        save_tensors(path, {"a": torch.ones(3)}, {}, digest=True)
    assert recorded_digest(path) == digests.of_file(path)
    save_tensors(path, {"a": torch.full((3,), 2.0)}, {}, digest=True)
    assert digest_path(path).read_text() == f"{digests.of_file(path)}  {path.name}\n"


def test_weights_that_are_the_same_already_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_tensors(path, {"a": torch.zeros(3)}, {"b": "c"}, digest=True)
    before = [each.stat().st_ino for each in (path, digest_path(path))]
    save_tensors(path, {"a": torch.zeros(3)}, {"b": "c"}, digest=True)
    assert [each.stat().st_ino for each in (path, digest_path(path))] == before
    path.write_bytes(path.read_bytes()[:-1])
    save_tensors(path, {"a": torch.zeros(3)}, {"b": "c"}, digest=True)
    assert recorded_digest(path) == digests.of_file(path), "what is damaged is written anew"
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, digest_path(path).name]
