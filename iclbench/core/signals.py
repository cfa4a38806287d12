"""Handle signals: defer them, ignore or remember Ctrl-C, and treat SIGTERM like Ctrl-C."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Seconds between two checks that the parent process is still running.
_WATCH_SECONDS = 0.5


@contextmanager
def defer_signals(*signals: signal.Signals) -> Iterator[None]:
    """Defer these signals in this thread until the end of the block. Processes started in the block never receive them,
    because they inherit the signal mask. Windows has no signal masks: there, do nothing."""
    if sys.platform == "win32":
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def ignore_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C in all threads within the block. This protects the shutdown of libraries that would otherwise end
    the process without a message. Outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


_ctrl_c_pressed = False


@contextmanager
def remember_ctrl_c() -> Iterator[None]:
    """Within the block, Ctrl-C raises `KeyboardInterrupt` as usual and is remembered for `raise_if_ctrl_c`.

    The exception can get lost: Python converts it to a `RuntimeError` if it is raised while a class is created
    (`__set_name__`), and libraries may replace or suppress it.
    """
    global _ctrl_c_pressed
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def remember(number: int, frame: FrameType | None) -> None:
        global _ctrl_c_pressed
        _ctrl_c_pressed = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _ctrl_c_pressed = False


def raise_if_ctrl_c(error: BaseException | None = None) -> None:
    """Raise `KeyboardInterrupt`, with `error` as its cause, if the user has pressed Ctrl-C within `remember_ctrl_c`."""
    if _ctrl_c_pressed:
        raise KeyboardInterrupt from error


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Within the block, SIGTERM raises `KeyboardInterrupt`, so that the same clean-up runs as after Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def end_with_parent(parent: int) -> None:
    """End this process when its parent process ends, so that it releases its locks. On Windows, `os.getppid` does not
    change, so the process first finishes its current work."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def exit_on_signal(signal_number: signal.Signals, code: int) -> None:
    """Make this signal end the process at once with this exit code and without a message. During interpreter shutdown,
    the signal is ignored."""
    signal.signal(signal_number, lambda number, frame: os._exit(code))
    # At exit, Python restores the default handlers of all signals that are not ignored. The shutdown of libraries comes
    # later and takes most of the time, so the signal is ignored from then on.
    atexit.register(signal.signal, signal_number, signal.SIG_IGN)
