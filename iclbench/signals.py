"""Signals that have to wait."""

from __future__ import annotations

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
