"""The outcome of computing a cell."""

from __future__ import annotations

from dataclasses import dataclass

from iclbench.store.state import State


@dataclass(frozen=True)
class Outcome:
    """The outcome of computing a cell.

    Attributes:
        status: done, failed, diverged or skipped.
        reason: why the cell failed, diverged or is not applicable.
        files: the files with the cell's rows and weights, relative to the results folder.
        seconds: the duration of the computation; for training, including earlier processes.
        warnings: warnings that the sweep prints, because a worker has no terminal.
    """

    status: State
    reason: str | None = None
    files: tuple[str, ...] = ()
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
