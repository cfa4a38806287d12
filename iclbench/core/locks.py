"""Locks that hold between processes, and between machines that share a folder.

The system's own (`flock`) are freed on any death. Some shared file systems do not have them (Lustre without `flock`),
or have them on every machine for itself (NFS with `nolock`): there a folder is the lock, made by one process alone,
with its owner in it and a heartbeat. It is stale when the owner is dead, or has not been heard of for `STALE` seconds.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

# Seconds between two heartbeats, and without one until a lock is taken away from its owner.
BEAT, STALE = 15.0, 120.0
# Seconds between two tries.
_PATIENCE = 0.5
# What `flock` says where there is none.
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
# Set to "folders", all locks are folders.
_ASKED = "ICLBENCH_LOCKS"


@runtime_checkable
class Lock(Protocol):
    """One lock, taken by `acquire`."""

    def acquire(self, wait: bool) -> None:
        """Take it; raises `BlockingIOError` if another process has it and `wait` is False."""

    @property
    def held(self) -> bool:
        """Whether what was taken is what lies there now."""

    def release(self) -> None:
        """Give it back."""


def lock(path: Path) -> Lock:
    """The lock of a file name, as the file system there allows."""
    if os.environ.get(_ASKED) == "folders" or not reaches_all_machines(path):
        return FolderLock(path)
    return _FileLock(path)


class _FileLock:
    """`flock` on a file; a folder where it turns out not to be supported."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._instead: FolderLock | None = None

    def acquire(self, wait: bool) -> None:
        while not self.held:
            if self._instead is None:
                self.release()
                self._file = self._path.open("w")
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                    continue
                except OSError as error:
                    self.release()
                    if error.errno not in _UNSUPPORTED:
                        raise
                self._instead = FolderLock(self._path)
            self._instead.acquire(wait)

    @property
    def held(self) -> bool:
        if self._instead is not None:
            return self._instead.held
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if self._instead is not None:
            self._instead.release()
        if self._file is not None:
            self._file.close()
            self._file = None


class FolderLock:
    """A folder next to the path, with its owner in it."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".d")
        self._owner = self._path / "owner.json"
        self._token = uuid.uuid4().hex
        self._released = threading.Event()

    def acquire(self, wait: bool) -> None:
        while not self.held:
            try:
                self._path.mkdir()
            except FileExistsError:
                if self._stale():
                    self._clear()
                elif wait:
                    time.sleep(_PATIENCE)
                else:
                    raise BlockingIOError(errno.EAGAIN, "another process has the lock", str(self._path)) from None
                continue
            about = {"token": self._token, "machine": _machine(), "pid": os.getpid()}
            self._owner.write_text(json.dumps(about))
            self._released.clear()
            threading.Thread(target=self._beat, name=f"lock {self._path}", daemon=True).start()

    @property
    def held(self) -> bool:
        try:
            return bool(json.loads(self._owner.read_text())["token"] == self._token)
        except (OSError, ValueError, KeyError):
            return False

    def release(self) -> None:
        self._released.set()
        if self.held:
            shutil.rmtree(self._path, ignore_errors=True)

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            with suppress(OSError):
                if self.held:
                    os.utime(self._owner)

    def _stale(self) -> bool:
        """Whether its owner is dead, as far as this machine can see, or has not been heard of."""
        try:
            about = json.loads(self._owner.read_text())
            if about["machine"] == _machine() and not alive(about["pid"]):
                return True
        except (OSError, ValueError, KeyError):
            pass  # it is just being made, or was left half made
        path = self._owner if self._owner.exists() else self._path
        try:
            return self._now() - path.stat().st_mtime > STALE
        except FileNotFoundError:
            return False

    def _now(self) -> float:
        """The time of the file system's clock, by which heartbeats are dated."""
        probe = self._path.with_name(f"{self._path.name}-{uuid.uuid4().hex}")
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Take a stale folder away."""
        # Who has judged must not take away what another one has made since: one at a time, and looking once more.
        guard = self._path.with_name(self._path.name + ".guard")
        try:
            guard.mkdir()
        except FileExistsError:
            with suppress(OSError):
                if self._now() - guard.stat().st_mtime > STALE:  # its maker died within a moment
                    guard.rmdir()
            time.sleep(_PATIENCE)
            return
        try:
            if self._stale():
                shutil.rmtree(self._path, ignore_errors=True)
        finally:
            with suppress(OSError):
                guard.rmdir()


def reaches_all_machines(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether `flock` in this folder is seen by all machines that share it, as far as mount options say."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return True
    folder = path.resolve()
    mounted = [line for line in lines if len(line) > 3 and folder.is_relative_to(line[1].replace("\\040", " "))]
    if not mounted:
        return True
    longest = max(len(line[1]) for line in mounted)
    _, _, kind, options, *_ = [line for line in mounted if len(line[1]) == longest][-1]  # of several there, the last
    option_set = set(options.split(","))
    if kind.startswith("nfs"):
        return not option_set & {"nolock", "local_lock=all", "local_lock=flock"}
    if kind == "lustre":
        return "flock" in option_set
    return not kind.startswith(("fuse", "cifs", "smb", "9p"))  # buckets and the like


def _machine() -> str:
    """Where process ids are those that this process sees: the host, since it was started, and its container."""
    parts = [socket.gethostname()]
    for read in (Path("/proc/sys/kernel/random/boot_id").read_text, lambda: str(Path("/proc/self/ns/pid").readlink())):
        with suppress(OSError):
            parts.append(read().strip())
    return " ".join(parts)


def alive(pid: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
