"""The outcome of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from iclbench.store.state import State


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        status: done, failed, diverged or skipped.
        reason: why the cell failed or is not applicable.
        files: the files with its rows and weights, relative to the results folder.
        seconds: the duration in this process.
        warnings: lines for the terminal of the sweep, which a worker does not have.
    """

    status: State
    reason: str | None = None
    files: tuple[str, ...] = ()
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
