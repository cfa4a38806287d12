"""What of a grid is left to do, in an order that respects what every cell needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iclbench.config.resolution import TaskConfig
from iclbench.store.runs import Run
from iclbench.sweep.cells import GridCell
from iclbench.sweep.outcome import Status
from iclbench.sweep.store import Store


@dataclass(frozen=True)
class Plan:
    """A grid against a results folder.

    Attributes:
        cells: all cells of the grid.
        status: what is known of each, by hash.
        todo: those to do, whoever is needed first; among them trainings whose rows are there, but not the weights that
            another cell to do needs, and evaluations of which only packed values are there where a summary to do needs
            the scores of all episodes.
        waiting: those that would be to do, but need others that are left out.
    """

    cells: tuple[GridCell, ...]
    status: dict[str, Status | None]
    todo: tuple[GridCell, ...]
    waiting: tuple[GridCell, ...] = ()

    @property
    def again(self) -> tuple[GridCell, ...]:
        """Those to do although they are done, for what others need of them."""
        return tuple(cell for cell in self.todo if self.status[cell.hash] == "done")


def plan(cells: Sequence[GridCell], store: Store) -> Plan:
    """Cells without a row or with files missing are to do, and failed ones are tried again. Those that make no sense
    are to do until a row says so, which takes no time; those that need a training that diverged, when that is to do
    again or no longer diverged."""
    status = {cell.hash: store.status(cell) for cell in cells}
    # One that makes no sense is settled once, by a row with the reason.
    todo = {cell.hash for cell in cells if status[cell.hash] in (None, "failed") or not store.has_row(cell)}
    for cell in cells:
        changed = (need in todo or status.get(need, "diverged") != "diverged" for need in cell.needs)
        if status[cell.hash] == "diverged" and any(changed):
            todo.add(cell.hash)
    known = {cell.hash: cell for cell in cells}
    for cell in cells:
        # What all contestants did together changes with any of them.
        if cell.is_summary and (cell.hash in todo or todo & set(cell.needs)):
            todo.add(cell.hash)
            if by_episode(cell.frozen):
                needs = [known[need] for need in cell.needs if store.is_packed(need)]
                todo.update(need.hash for need in needs if not store.has_episodes(need))
    for cell in cells:
        of_weights = cell.config is not None and cell.needs and not cell.reason
        if cell.hash in todo and of_weights and not _has_weights(store.results, cell):
            todo.update(need for need in cell.needs if status.get(need) != "diverged")
    return Plan(tuple(cells), status, tuple(cell for cell in cells if cell.hash in todo))


def only(plan: Plan, store: Store, kinds: Sequence[str], contestants: Sequence[str] | None = None) -> Plan:
    """The plan with nothing to do but cells of these kinds and contestants (None: all), and of them none that need
    what is then left out. A summary of these contestants sums up all evaluations that are done by then."""
    out, waiting, partial = set[str](), list[GridCell](), dict[str, GridCell]()
    own = {cell.hash for cell in plan.cells if contestants is None or cell.contestant in contestants}
    for cell in plan.todo:
        needs, left = set(cell.needs), out & set(cell.needs)
        summary = contestants is not None and cell.is_summary and bool(own & (needs - left))
        wanted = cell.kind in kinds and (cell.hash in own or summary)
        if wanted and summary and left and all(plan.status[need] != "done" for need in left):
            partial[cell.hash] = replace(cell, needs=tuple(need for need in cell.needs if need not in left))
            left = set()
        if wanted and (cell.reason is not None or not left):
            continue
        out.add(cell.hash)
        if wanted:
            waiting.append(cell)
    status = plan.status | {cell.hash: store.status(cell) for cell in partial.values()}
    todo = [partial.get(cell.hash, cell) for cell in plan.todo if cell.hash not in out]
    changed = {cell.hash for cell in todo}
    return Plan(
        tuple(partial.get(cell.hash, cell) for cell in plan.cells),
        status,
        tuple(cell for cell in todo if status[cell.hash] != "done" or not cell.is_summary or changed & set(cell.needs)),
        tuple(waiting),
    )


def by_episode(task: TaskConfig) -> bool:
    """Whether the summary of a task compares episode by episode, for which values are not enough."""
    return task.question == "targets" and bool(task.oracles)


def _has_weights(results: Path, cell: GridCell) -> bool:
    """Whether the weights that a cell is about are there: of an evaluation those of all branches, which a run from an
    archive has not."""
    assert cell.config is not None
    branches = cell.kind == "evaluate" and cell.config.train.branch_steps
    return weights(results, cell).is_file() and not (branches and Run(results / "runs" / cell.run).unpacked)


def weights(results: Path, cell: GridCell) -> Path:
    """The file of the weights that a cell is about."""
    return Run(results / "runs" / cell.run).weights
