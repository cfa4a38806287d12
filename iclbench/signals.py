"""Signals that have to wait."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back(*which: signal.Signals) -> Iterator[None]:
    """These signals reach this thread only after the block, and processes that are started within not at all: they
    inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, which)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_at_once(which: signal.Signals, code: int) -> None:
    """From now on this signal ends the process with an exit code: it is on its way out, and all is said."""
    signal.signal(which, lambda number, frame: os._exit(code))
    # Python gives all signals but ignored ones back to the system before libraries are taken down, which takes longest.
    atexit.register(signal.signal, which, signal.SIG_IGN)
