"""File locks, and folders that serve as locks on file systems whose file locks do not reach other machines."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from iclbench.store import locks
from iclbench.store.locks import FolderLock, Lock, flock_reaches_all_machines, lock

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw,vers=4.2,local_lock=none 0 0
server:/old /old nfs rw,nolock 0 0
server:/half /half nfs rw,local_lock=flock 0 0
lustre:/a /scratch lustre rw,flock,lazystatfs 0 0
lustre:/b /scratch/b lustre rw,localflock 0 0
auto /old autofs rw 0 0
server:/old /old nfs rw,nolock 0 0
bucket /bucket fuse.goofys rw 0 0
"""


@pytest.fixture(params=["file", "folder", "unsupported", "windows"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a lock. Each test runs with file locks, with folder locks, and on a system that does not support
    file locks.
    """
    if request.param == "folder":
        monkeypatch.setenv("ICLBENCH_LOCKS", "folders")
    if request.param == "unsupported":

        def refuse(*arguments: object) -> None:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(locks.fcntl, "flock", refuse)
    if request.param == "windows":
        monkeypatch.setattr(locks, "sys", SimpleNamespace(platform="win32"))
    return tmp_path / "lock"


def is_blocked(lock: Lock) -> bool:
    try:
        lock.acquire(wait=False)
    except BlockingIOError:
        return True
    return False


def test_a_second_process_waits_for_the_lock(path: Path) -> None:
    first, second = lock(path), lock(path)
    first.acquire(wait=False)
    assert first.is_held and not second.is_held and is_blocked(second)
    first.release()
    assert not first.is_held
    second.acquire(wait=True)
    assert second.is_held and is_blocked(first)
    second.release()


def test_a_lock_whose_file_is_deleted_is_lost(path: Path) -> None:
    deleted_lock = lock(path)
    deleted_lock.acquire(wait=False)
    for file in (path, path.with_name("lock.d") / "owner.json"):
        file.unlink(missing_ok=True)
    assert not deleted_lock.is_held


def test_the_lock_of_a_dead_owner_can_be_acquired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_LOCKS", "folders")
    code = (
        "import os, sys, pathlib; from iclbench.store.locks import lock; lock(pathlib.Path(sys.argv[1])).acquire(False)"
    )
    subprocess.run([sys.executable, "-c", f"{code}; os._exit(0)", str(tmp_path / "lock")], check=True)
    assert (tmp_path / "lock.d" / "owner.json").is_file()
    new_lock = lock(tmp_path / "lock")
    new_lock.acquire(wait=False)
    assert new_lock.is_held
    new_lock.release()


def test_the_lock_of_another_machine_is_stale_after_its_last_heartbeat(tmp_path: Path) -> None:
    folder = tmp_path / "lock.d"
    folder.mkdir()
    owner = folder / "owner.json"
    owner.write_text(json.dumps({"token": "x", "machine": "elsewhere", "pid": 1}))
    new_lock = FolderLock(tmp_path / "lock")
    assert is_blocked(new_lock)
    last_beat = time.time() - locks.STALE_SECONDS - 1
    os.utime(owner, (last_beat, last_beat))
    new_lock.acquire(wait=False)
    assert new_lock.is_held
    new_lock.release()
    assert list(tmp_path.iterdir()) == []


def test_only_one_process_takes_a_stale_lock(tmp_path: Path) -> None:
    folder = tmp_path / "lock.d"
    folder.mkdir()
    owner = folder / "owner.json"
    owner.write_text(json.dumps({"token": "x", "machine": "elsewhere", "pid": 1}))
    os.utime(owner, (0, 0))
    first, second = FolderLock(tmp_path / "lock"), FolderLock(tmp_path / "lock")
    assert first._is_stale() and second._is_stale()
    first.acquire(wait=False)
    second._remove_if_stale()  # as if `second` had seen the stale lock before `first` acquired it
    assert first.is_held and not second.is_held and is_blocked(second)
    first.release()


def test_a_held_lock_sends_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.01)
    beating_lock = FolderLock(tmp_path / "lock")
    beating_lock.acquire(wait=False)
    owner = tmp_path / "lock.d" / "owner.json"
    os.utime(owner, (0, 0))
    deadline = time.monotonic() + 10
    while owner.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert owner.stat().st_mtime > 0
    beating_lock.release()


REACHES_ALL_MACHINES = {
    "/x": True,
    "/home/me": True,
    "/old/x": False,
    "/half": False,
    "/scratch/x": True,
    "/scratch/b": False,
    "/bucket/x": False,
}


@pytest.mark.parametrize(("path", "reaches"), REACHES_ALL_MACHINES.items())
def test_mount_options_determine_whether_a_lock_reaches_all_machines(path: str, reaches: bool, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert flock_reaches_all_machines(Path(path), mounts) is reaches


def test_windows_may_refuse_a_folder_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the same name is being removed, and another process is reading its file."""
    monkeypatch.setattr(locks, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(locks, "_ATTEMPT_SECONDS", 0.0)
    mkdir, rmtree = Path.mkdir, locks.shutil.rmtree
    refusals = {"mkdir": 3, "rmtree": 3}

    def refuse_mkdir(self: Path, *arguments: object, **settings: object) -> None:
        refusals["mkdir"] -= 1
        if refusals["mkdir"] >= 0:
            raise PermissionError(errno.EACCES, "Access is denied")
        mkdir(self)

    def refuse_rmtree(path: Path, ignore_errors: bool) -> None:
        refusals["rmtree"] -= 1
        if refusals["rmtree"] < 0:
            rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(Path, "mkdir", refuse_mkdir)
    monkeypatch.setattr(locks.shutil, "rmtree", refuse_rmtree)
    held = FolderLock(tmp_path / "lock")
    held.acquire(wait=False)
    assert held.is_held
    held.release()
    assert not list(tmp_path.iterdir())
    refusals["mkdir"] = 1000
    with pytest.raises(PermissionError):
        held.acquire(wait=True)


def test_release_does_not_remove_the_lock_of_the_next_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process acquires the lock as soon as the folder is removed."""
    first, second = FolderLock(tmp_path / "lock"), FolderLock(tmp_path / "lock")
    rmtree = locks.shutil.rmtree

    removed: list[Path] = []

    def remove_and_acquire(path: Path, ignore_errors: bool) -> None:
        rmtree(path, ignore_errors=ignore_errors)
        removed.append(path)
        second.acquire(wait=False)

    first.acquire(wait=False)
    monkeypatch.setattr(locks.shutil, "rmtree", remove_and_acquire)
    first.release()
    assert second.is_held and not first.is_held and len(removed) == 1
    monkeypatch.undo()
    second.release()
