"""Cells that worker processes compute in the tests and that misuse their process. This module has no slow imports."""

import os
import signal
import subprocess
import time
from pathlib import Path

from iclbench.core.processes import lead_session
from iclbench.store.outcome import Outcome

BLOCKS: list[object] = []


def set_up(threads: int, visible_gpu: str | None, instruction_set: str) -> None:
    lead_session()


def _record_process(folder: Path, name: str, pid: int) -> None:
    (folder / f"{name}.tmp").write_text(str(pid))
    (folder / f"{name}.tmp").rename(folder / f"{name}.pid")


def _start_command(folder: Path) -> None:
    _record_process(folder, "command", subprocess.Popen(["sleep", "1000"]).pid)


def start_processes_and_sleep(folder: Path, context: object) -> Outcome:
    """Start a child, a command and an orphan in a session of its own, and sleep. All ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _record_process(folder, "worker", os.getpid())
    _start_command(folder)
    for name in ("child", "orphan"):
        if os.fork() == 0:
            if name == "orphan":
                os.setsid()
                if os.fork():
                    os._exit(0)
            _record_process(folder, name, os.getpid())
            time.sleep(1000)
    time.sleep(1000)
    return Outcome("done")


def start_a_command(folder: Path, context: object) -> Outcome:
    _start_command(folder)
    return Outcome("done")


def start_a_command_and_die(folder: Path, context: object) -> Outcome:
    _start_command(folder)
    os._exit(3)


def allocate(folder: Path, context: object) -> Outcome:
    """Allocate blocks of 64 MiB without end, and do not release them. Record their number after every block. Pages are
    not used, so that the machine needs no memory."""
    import numpy

    while True:
        BLOCKS.append(numpy.empty(1 << 26, numpy.int8))
        (folder / "blocks").write_text(str(len(BLOCKS)))


def allocate_all(folder: Path, context: object) -> Outcome:
    """Allocate all memory, so that nothing is left to report the error, and wait."""
    import numpy

    size = 1 << 26
    while size:
        try:
            BLOCKS.append(numpy.empty(size, numpy.int8))
        except MemoryError:
            size //= 2
    while True:
        signal.pause()
