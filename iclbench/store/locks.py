"""Locks between processes, and between machines that share a folder.

The operating system releases its locks (`flock`) when a process ends for any reason. Some shared file systems do not
support such locks (Lustre without `flock`), or do not share them between machines (NFS with `nolock`). On these file
systems, the lock is a folder with a file that names its owner. The owner touches the file at regular intervals (the
heartbeat). The lock is stale if the owner is dead, or if the last heartbeat is older than `STALE_SECONDS`. On Windows,
which has no `flock`, all locks are folders.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

if sys.platform != "win32":
    import fcntl

# Seconds between two heartbeats, and the age of the last heartbeat above which a lock is stale.
BEAT_SECONDS, STALE_SECONDS = 15.0, 120.0
# Seconds between two attempts to acquire a lock.
_RETRY_SECONDS = 0.5
# Number of attempts to create or to remove a folder that another process has open, and the seconds between them.
_ATTEMPTS, _ATTEMPT_SECONDS = 20, 0.05
# Error numbers of `flock` on file systems that do not support it.
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
# If this environment variable is "folders", all locks are folders.
_VARIABLE = "ICLBENCH_LOCKS"


@runtime_checkable
class Lock(Protocol):
    """A lock that at most one process holds at a time."""

    def acquire(self, wait: bool) -> None:
        """Acquire the lock. Raise `BlockingIOError` if another process holds it and `wait` is False."""

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock. It is False if the lock's file or folder was deleted or replaced."""

    def release(self) -> None:
        """Release the lock."""


def lock(path: Path) -> Lock:
    """Return a lock for a path, of a kind that its file system supports."""
    if sys.platform == "win32" or os.environ.get(_VARIABLE) == "folders" or not flock_reaches_all_machines(path):
        return FolderLock(path)
    return _FileLock(path)


class _FileLock:
    """`flock` on a file, or a `FolderLock` if the first attempt shows that `flock` is not supported."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._fallback: FolderLock | None = None

    def acquire(self, wait: bool) -> None:
        while not self.is_held:
            if self._fallback is None:
                self.release()
                self._file = self._path.open("w")
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                    continue
                except OSError as error:
                    self.release()
                    if error.errno not in _UNSUPPORTED:
                        raise
                self._fallback = FolderLock(self._path)
            self._fallback.acquire(wait)

    @property
    def is_held(self) -> bool:
        if self._fallback is not None:
            return self._fallback.is_held
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if self._fallback is not None:
            self._fallback.release()
        if self._file is not None:
            self._file.close()
            self._file = None


class FolderLock:
    """A lock that is a folder next to the path, with a file that names its owner."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".d")
        self._owner_file = self._path / "owner.json"
        self._token = uuid.uuid4().hex
        self._released = threading.Event()

    def acquire(self, wait: bool) -> None:
        refusals = 0
        while not self.is_held:
            try:
                self._path.mkdir()
            except PermissionError:
                # Windows refuses to create a folder while one with the same name is being removed.
                refusals += 1
                if sys.platform != "win32" or refusals == _ATTEMPTS:
                    raise
                time.sleep(_ATTEMPT_SECONDS)
                continue
            except FileExistsError:
                if self._is_stale():
                    self._remove_if_stale()
                elif wait:
                    time.sleep(_RETRY_SECONDS)
                else:
                    raise BlockingIOError(errno.EAGAIN, "another process has the lock", str(self._path)) from None
                continue
            owner = {"token": self._token, "machine": _machine(), "pid": os.getpid()}
            self._owner_file.write_text(json.dumps(owner))
            self._released.clear()
            threading.Thread(target=self._beat, name=f"lock {self._path}", daemon=True).start()

    @property
    def is_held(self) -> bool:
        try:
            return bool(json.loads(self._owner_file.read_text())["token"] == self._token)
        except (OSError, ValueError, KeyError):
            return False

    def release(self) -> None:
        self._released.set()
        self._remove_while(lambda: self.is_held)

    def _beat(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            with suppress(OSError):
                if self.is_held:
                    os.utime(self._owner_file)

    def _is_stale(self) -> bool:
        """Return whether the owner is known to be dead, or the last heartbeat is too old."""
        try:
            owner = json.loads(self._owner_file.read_text())
            if owner["machine"] == _machine() and not is_alive(owner["pid"]):
                return True
        except (OSError, ValueError, KeyError):
            pass  # another process is creating the file, or has died while creating it
        path = self._owner_file if self._owner_file.exists() else self._path
        try:
            return self._now() - path.stat().st_mtime > STALE_SECONDS
        except FileNotFoundError:
            return False

    def _now(self) -> float:
        """Return the time of the file system's clock, since heartbeats have its time stamps."""
        probe = self._path.with_name(f"{self._path.name}-{uuid.uuid4().hex}")
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _remove_if_stale(self) -> None:
        """Remove the folder if it is still stale."""
        # Another process may have replaced the stale folder since the last check. Therefore only one process at a time
        # removes folders, and it repeats the check.
        guard = self._path.with_name(self._path.name + ".guard")
        try:
            guard.mkdir()
        except FileExistsError:
            with suppress(OSError):
                if self._now() - guard.stat().st_mtime > STALE_SECONDS:  # the process that created it is dead
                    guard.rmdir()
            time.sleep(_RETRY_SECONDS)
            return
        try:
            self._remove_while(self._is_stale)
        finally:
            with suppress(OSError):
                guard.rmdir()

    def _remove_while(self, is_removable: Callable[[], bool]) -> None:
        """Remove the folder. Windows does not remove a file that another process is reading, so repeat the attempt, but
        do not remove the folder of the next owner."""
        for _ in range(_ATTEMPTS):
            if not is_removable():
                return
            shutil.rmtree(self._path, ignore_errors=True)
            if self._path.exists():
                time.sleep(_ATTEMPT_SECONDS)


def flock_reaches_all_machines(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether, according to the mount options, `flock` on a path excludes processes on all machines that share
    it."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return True
    folder = path.resolve()
    containing = [line for line in lines if len(line) > 3 and folder.is_relative_to(line[1].replace("\\040", " "))]
    if not containing:
        return True
    max_length = max(len(line[1]) for line in containing)
    # A later mount at the same mount point hides the earlier ones.
    _, _, file_system, options, *_ = [line for line in containing if len(line[1]) == max_length][-1]
    option_set = set(options.split(","))
    if file_system.startswith("nfs"):
        return not option_set & {"nolock", "local_lock=all", "local_lock=flock"}
    if file_system == "lustre":
        return "flock" in option_set
    return not file_system.startswith(("fuse", "cifs", "smb", "9p"))  # such as mounted buckets


def _machine() -> str:
    """Return an identifier of the host, its boot and the container. Process ids are unique among processes with the
    same identifier."""
    names = [socket.gethostname()]
    for read in (Path("/proc/sys/kernel/random/boot_id").read_text, lambda: str(Path("/proc/self/ns/pid").readlink())):
        with suppress(OSError):
            names.append(read().strip())
    return " ".join(names)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this machine. Always True on Windows, where `os.kill` would end the
    process."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
