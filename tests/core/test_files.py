"""Files are either written completely or left unchanged."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from iclbench.core import digests
from iclbench.core.files import atomic, digest_path, remove_leftovers, save_tensors
from iclbench.store.runs import recorded_digest


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe"), atomic(pipe) as temporary:
        temporary.write_text("new")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_writing_through_a_link_replaces_its_target(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    with atomic(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_folders_are_synced_as_well_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a power failure may lose the directory entry of a file whose bytes are on the disk."""
    synced: list[tuple[Path, bool]] = []
    path = tmp_path / "new" / "folder" / "file"

    def fsync(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic(path) as temporary:
        temporary.write_text("new")
    assert {(tmp_path, False), (tmp_path / "new", False), (temporary, False)} <= set(synced), (
        "the file is synced before it is renamed"
    )
    assert synced[-1] == (path.parent, True)


def test_only_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    with atomic(tmp_path / "file") as temporary:
        temporary.write_text("new")
        leftover = temporary.name
    other_names = {leftover.replace("tmp", "txt"), ".file.tmp", "file.1.tmp"}
    for name in (leftover, *other_names):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", *other_names}


def test_equal_tensors_and_metadata_give_identical_files(tmp_path: Path) -> None:
    metadata = {f"key {i}": f"\u00e4 '\"\\ \n {i}" for i in range(9)}
    tensors = {"a": torch.arange(3), "b": torch.ones(2, 2)}
    for name in ("one", "two", "three"):
        save_tensors(tmp_path / name, tensors, metadata)
    assert len({(tmp_path / name).read_bytes() for name in ("one", "two", "three")}) == 1
    with safe_open(tmp_path / "one", framework="pt") as file:
        assert file.metadata() == metadata and torch.equal(file.get_tensor("b"), tensors["b"])


@pytest.mark.parametrize("files_renamed", [0, 1, 2, 3])
def test_weights_match_their_digest_if_the_writer_is_killed_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_renamed: int
) -> None:
    path = tmp_path / "w.safetensors"
    save_tensors(path, {"a": torch.zeros(3)}, {}, digest=True)
    replace, remaining = Path.replace, iter(range(files_renamed))

    def replace_or_interrupt(self: Path, target: Path) -> Path:
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(Path, "replace", replace_or_interrupt)
        save_tensors(path, {"a": torch.ones(3)}, {}, digest=True)
    assert recorded_digest(path) == digests.file_digest(path)
    save_tensors(path, {"a": torch.full((3,), 2.0)}, {}, digest=True)
    assert digest_path(path).read_text() == f"{digests.file_digest(path)}  {path.name}\n"


def test_equal_weights_are_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_tensors(path, {"a": torch.zeros(3)}, {"b": "c"}, digest=True)
    inodes = [file.stat().st_ino for file in (path, digest_path(path))]
    save_tensors(path, {"a": torch.zeros(3)}, {"b": "c"}, digest=True)
    assert [file.stat().st_ino for file in (path, digest_path(path))] == inodes
    path.write_bytes(path.read_bytes()[:-1])
    save_tensors(path, {"a": torch.zeros(3)}, {"b": "c"}, digest=True)
    assert recorded_digest(path) == digests.file_digest(path), "a damaged file is rewritten"
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, digest_path(path).name]
