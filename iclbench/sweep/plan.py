"""What of a grid is left to do, in an order that respects what every cell needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iclbench.runs import Run
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.outcome import Status
from iclbench.sweep.store import Store


@dataclass(frozen=True)
class Plan:
    """A grid against a results folder.

    Attributes:
        cells: all cells of the grid.
        status: what is known of each, by hash.
        todo: those to do, whoever is needed first; among them trainings whose rows are there, but not the weights that
            another cell to do needs.
    """

    cells: tuple[GridCell, ...]
    status: dict[str, Status | None]
    todo: tuple[GridCell, ...]

    @property
    def again(self) -> tuple[GridCell, ...]:
        """Trainings to be repeated for their weights alone."""
        return tuple(cell for cell in self.todo if self.status[cell.hash] == "done" and cell.kind == "train")


def plan(cells: Sequence[GridCell], store: Store) -> Plan:
    """Cells without a row or with files missing are to do, and failed ones are tried again. Those that make no sense
    are to do until a row says so, which takes no time."""
    status = {cell.hash: store.status(cell) for cell in cells}
    # One that makes no sense is settled once, by a row with the reason.
    todo = {cell.hash for cell in cells if status[cell.hash] in (None, "failed") or not store.has_row(cell)}
    for cell in cells:
        if cell.hash in todo and cell.config is not None and cell.needs and not cell.reason:
            if not weights(store.results, cell).is_file():
                todo.update(cell.needs)
        elif cell.run == SUMMARY and todo & set(cell.needs):
            todo.add(cell.hash)  # what all contestants did together changes with any of them
    return Plan(tuple(cells), status, tuple(cell for cell in cells if cell.hash in todo))


def weights(results: Path, cell: GridCell) -> Path:
    """The file of the weights that a cell is about."""
    return Run(results / "runs" / cell.run).weights
