"""What workers are asked to do in tests: functions that import nothing."""

import os
import signal
import time
from pathlib import Path


def set_up(seen: str = "", threads: int = 1) -> None:
    os.environ["SEEN_BY_SLOT"] = seen


def refuse() -> None:
    raise RuntimeError("no such device")


def square(x: int) -> int:
    return x * x


def pid() -> int:
    return os.getpid()


def seen() -> str:
    return os.environ["SEEN_BY_SLOT"]


def sleep(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def meet(folder: Path, mine: str, other: str) -> str:
    """Return once the other call is running, too."""
    (folder / mine).touch()
    deadline = time.monotonic() + 60
    while not (folder / other).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(other)
        time.sleep(0.01)
    return mine


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def fail(text: str) -> None:
    raise ValueError(text)


def begin_and_sleep(began: Path) -> None:
    began.write_text(str(os.getpid()))
    time.sleep(600)


def stop_slowly(began: Path, ended: Path) -> None:
    """Like a training: on SIGTERM write something, then end."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    began.write_text(str(os.getpid()))
    while not asked:
        time.sleep(0.01)
    time.sleep(0.2)
    ended.write_text("checkpoint")


def never_stop(began: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    began.write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)
