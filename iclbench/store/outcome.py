"""What became of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from iclbench.store.state import State


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        status: done, failed, diverged or skipped.
        reason: why it failed or is not applicable.
        files: what holds its rows and weights, relative to the results folder.
        seconds: how long it took in this process.
        warnings: lines for the terminal of the sweep; a worker has no terminal of its own.
    """

    status: State
    reason: str | None = None
    files: tuple[str, ...] = ()
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
