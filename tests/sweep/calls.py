"""Functions that worker processes call in tests. They import no large modules."""

import os
import signal
import time
from pathlib import Path


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
    """Return as soon as the other call is running, too."""
    (folder / name).touch()
    deadline = time.monotonic() + 60
    while not (folder / other).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(other)
        time.sleep(0.01)
    return name


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def fail(text: str) -> None:
    raise ValueError(text)


def stop_slowly(start_file: Path, checkpoint: Path) -> None:
    """Write a checkpoint on SIGTERM and end, like a training run."""
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
