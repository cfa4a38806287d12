"""End a process together with all processes that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
# A process that forks again and again may escape a signal, so signals are repeated for this time.
_KILL_SECONDS = 10.0


def lead_session() -> None:
    """Make this process the leader of a new session and, on Linux, the parent of its orphaned descendants. Without
    effect on Windows."""
    if sys.platform != "win32":
        os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_session(leader: int) -> None:
    """Kill a process that has called `lead_session`, all its descendants, and the processes of its session if it has
    ended before. Outside Linux, kill only its process group; without effect on Windows."""
    if sys.platform == "win32":
        return
    _send(leader, signal.SIGSTOP)  # it continues to adopt orphans, but does not start processes
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := set(_session(leader))) and time.monotonic() < deadline:
        for pid in pids:
            _send(pid, signal.SIGKILL)
        time.sleep(0.01)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _send(pid: int, signal_number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal_number)


def _session(leader: int) -> Iterator[int]:
    """Yield the running descendants of a process, and the other processes of its session."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may contain any characters. State, parent, group and session follow.
            state, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "ZX" and (pid := int(path.parent.name)) != leader:
                children.setdefault(leader if int(session) == leader else int(parent), []).append(pid)
    queue = [leader]
    while queue:
        pids = children.pop(queue.pop(), [])
        yield from pids
        queue += pids
