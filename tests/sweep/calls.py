"""Functions that worker processes run in the tests. This module has no slow imports."""

import os
import signal
import time
from pathlib import Path

from iclbench.core.errors import UsageError


def set_up(slot: str = "", threads: int = 1) -> None:
    os.environ["SLOT_NAME"] = slot


def refuse() -> None:
    raise RuntimeError("no such device")


def square(x: int) -> int:
    return x * x


def pid() -> int:
    return os.getpid()


def slot_name() -> str:
    return os.environ["SLOT_NAME"]


def sleep(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def meet(folder: Path, name: str, other: str) -> str:
    """Wait until the other call has started, and return the name of this call."""
    (folder / name).touch()
    deadline = time.monotonic() + 60
    while not (folder / other).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(other)
        time.sleep(0.01)
    return name


def die(number: int | None = None) -> None:
    """End this process by a signal (default: SIGKILL, which Windows lacks)."""
    os.kill(os.getpid(), signal.SIGKILL if number is None else number)
    time.sleep(60)


def fail(text: str) -> None:
    raise ValueError(text)


def fail_with_code(message: str, code: str) -> None:
    raise UsageError(message, code=code)


def stop_slowly(start_file: Path, checkpoint: Path) -> None:
    """Wait for SIGTERM, write a checkpoint after a delay and return, like a training run."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    start_file.write_text(str(os.getpid()))
    while not signals:
        time.sleep(0.01)
    time.sleep(0.2)
    checkpoint.write_text("checkpoint")


def never_stop(start_file: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_file.write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)
