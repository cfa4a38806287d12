"""Locks: the system's own, and folders where these reach no other machine."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iclbench.core import locks
from iclbench.core.locks import FolderLock, Lock, lock, reaches_all_machines

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


@pytest.fixture(params=["file", "folder", "unsupported"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path at which locks are of one kind."""
    if request.param == "folder":
        monkeypatch.setenv("ICLBENCH_LOCKS", "folders")
    if request.param == "unsupported":

        def refuse(*arguments: object) -> None:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(locks.fcntl, "flock", refuse)
    return tmp_path / "lock"


def refused(other: Lock) -> bool:
    try:
        other.acquire(wait=False)
    except BlockingIOError:
        return True
    return False


def test_one_has_it_and_the_other_waits(made: Path) -> None:
    one, other = lock(made), lock(made)
    one.acquire(wait=False)
    assert one.held and not other.held and refused(other)
    one.release()
    assert not one.held
    other.acquire(wait=True)
    assert other.held and refused(one)
    other.release()


def test_a_lock_whose_folder_is_deleted_is_lost(made: Path) -> None:
    one = lock(made)
    one.acquire(wait=False)
    for path in (made, made.with_name("lock.d") / "owner.json"):
        path.unlink(missing_ok=True)
    assert not one.held


def test_a_dead_owner_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_LOCKS", "folders")
    code = (
        "import os, sys, pathlib; from iclbench.core.locks import lock; lock(pathlib.Path(sys.argv[1])).acquire(False)"
    )
    subprocess.run([sys.executable, "-c", f"{code}; os._exit(0)", str(tmp_path / "lock")], check=True)
    assert (tmp_path / "lock.d" / "owner.json").is_file()
    one = lock(tmp_path / "lock")
    one.acquire(wait=False)
    assert one.held
    one.release()


def test_an_owner_elsewhere_is_believed_as_long_as_its_heart_beats(tmp_path: Path) -> None:
    folder = tmp_path / "lock.d"
    folder.mkdir()
    owner = folder / "owner.json"
    owner.write_text(json.dumps({"token": "x", "machine": "elsewhere", "pid": 1}))
    one = FolderLock(tmp_path / "lock")
    assert refused(one)
    old = time.time() - locks.STALE - 1
    os.utime(owner, (old, old))
    one.acquire(wait=False)
    assert one.held
    one.release()
    assert list(tmp_path.iterdir()) == []


def test_of_several_who_find_it_stale_one_takes_it(tmp_path: Path) -> None:
    folder = tmp_path / "lock.d"
    folder.mkdir()
    owner = folder / "owner.json"
    owner.write_text(json.dumps({"token": "x", "machine": "elsewhere", "pid": 1}))
    os.utime(owner, (0, 0))
    one, other = FolderLock(tmp_path / "lock"), FolderLock(tmp_path / "lock")
    assert one._stale() and other._stale()
    one.acquire(wait=False)
    other._clear()  # as judged before
    assert one.held and not other.held and refused(other)
    one.release()


def test_its_own_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.01)
    one = FolderLock(tmp_path / "lock")
    one.acquire(wait=False)
    owner = tmp_path / "lock.d" / "owner.json"
    os.utime(owner, (0, 0))
    deadline = time.monotonic() + 10
    while owner.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert owner.stat().st_mtime > 0
    one.release()


REACHES = {
    "/x": True,
    "/home/me": True,
    "/old/x": False,
    "/half": False,
    "/scratch/x": True,
    "/scratch/b": False,
    "/bucket/x": False,
}


@pytest.mark.parametrize(("path", "reaches"), REACHES.items())
def test_mount_options_say_whether_it_reaches_all_machines(path: str, reaches: bool, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert reaches_all_machines(Path(path), mounts) is reaches
