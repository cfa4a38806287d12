"""What became of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["done", "failed", "skipped", "diverged"]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        status: `skipped` means that the cell makes no sense; it is not tried again, a failed one is. `diverged`: the
            training came to no finite weights, or the cell needs such a one; not tried again either, as long as it is
            remembered.
        reason: why it failed or makes no sense.
        files: what holds its rows and weights, relative to the results folder.
        seconds: how long it took in this process.
        warnings: lines that whoever watches the sweep should see; a worker has no terminal of its own.
    """

    status: Status
    reason: str | None = None
    files: tuple[str, ...] = ()
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
