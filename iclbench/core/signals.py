"""Signals that are deferred, and signals with the same handler."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# How often a process looks whether its parent is still there.
_WATCH_SECONDS = 0.5


@contextmanager
def held_back(*signals: signal.Signals) -> Iterator[None]:
    """These signals reach this thread only after the block, and processes that are started within not at all: they
    inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ctrl-C does nothing within the block, whichever thread gets it: for short ends of libraries that would take the
    process down without a word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_heard = False


@contextmanager
def ctrl_c_heard() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt` as ever, and within the block `heed_ctrl_c` knows that it came.

    What is raised does not always arrive: Python makes a `RuntimeError` of it where a class is made (`__set_name__`),
    libraries other errors or none.
    """
    global _heard
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: FrameType | None) -> None:
        global _heard
        _heard = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _heard = False


def heed_ctrl_c(error: BaseException | None = None) -> None:
    """Raise `KeyboardInterrupt` where Ctrl-C came before, whatever became of the first one: `error`, or nothing."""
    if _heard:
        raise KeyboardInterrupt from error


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """SIGTERM does within the block what Ctrl-C does: `KeyboardInterrupt`, and so whatever is
    saved or tidied up then."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def end_with_parent(parent: int) -> None:
    """From now on this process ends when that one does, whose child it is, and leaves no locks behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave_at_once(which: signal.Signals, code: int) -> None:
    """From now on this signal ends the process with an exit code: it is on its way out, and all is said."""
    signal.signal(which, lambda number, frame: os._exit(code))
    # Python gives all signals but ignored ones back to the system before libraries are taken down, which takes longest.
    atexit.register(signal.signal, which, signal.SIG_IGN)
