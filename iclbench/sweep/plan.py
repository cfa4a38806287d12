"""The plan of a sweep: which cells of a grid remain to be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iclbench.config.resolution import TaskConfig
from iclbench.store.cells import CellStore
from iclbench.store.runs import Run
from iclbench.store.state import State
from iclbench.sweep.cells import GridCell


@dataclass(frozen=True)
class Plan:
    """The cells of a grid, compared with a results folder.

    Attributes:
        cells: all cells of the grid.
        states: the state of each cell, by hash.
        todo: the cells to compute, each after the cells that it needs. They include finished training runs whose
            weights are missing but needed by another cell, and packed evaluations without the scores by episode that a
            summary needs.
        waiting: selected cells that are not in `todo`, because they need cells that were not selected.
    """

    cells: tuple[GridCell, ...]
    states: dict[str, State]
    todo: tuple[GridCell, ...]
    waiting: tuple[GridCell, ...] = ()

    @property
    def repeated(self) -> tuple[GridCell, ...]:
        """Finished cells that are computed again because other cells need their files."""
        return tuple(cell for cell in self.todo if self.states[cell.hash] == "done")


def make_plan(cells: Sequence[GridCell], store: CellStore) -> Plan:
    """Compare the cells of a grid with the results folder.

    Failed cells are tried again. A cell that is not applicable is in `todo` until its row is written, which needs no
    computation. A cell that was not computed because its training run diverged is in `todo` if this run is repeated or
    no longer counts as diverged.
    """
    states = {cell.hash: store.state(cell) for cell in cells}
    todo = {cell.hash for cell in cells if states[cell.hash] in ("todo", "failed") or not store.has_row(cell)}
    for cell in cells:
        changed = (need in todo or states.get(need, "diverged") != "diverged" for need in cell.needs)
        if states[cell.hash] == "diverged" and any(changed):
            todo.add(cell.hash)
    by_hash = {cell.hash: cell for cell in cells}
    for cell in cells:
        # A summary is recomputed if any of its contestants is.
        if cell.is_summary and (cell.hash in todo or todo & set(cell.needs)):
            todo.add(cell.hash)
            if is_compared_by_episode(cell.task_config):
                needs = [by_hash[need] for need in cell.needs if store.is_packed(need)]
                todo.update(need.hash for need in needs if not store.has_episode_scores(need))
    for cell in cells:
        needs_weights = cell.config is not None and cell.needs and not cell.reason
        if cell.hash in todo and needs_weights and not _has_weights(store.results, cell):
            todo.update(need for need in cell.needs if states.get(need) != "diverged")
    return Plan(tuple(cells), states, tuple(cell for cell in cells if cell.hash in todo))


def select_cells(plan: Plan, store: CellStore, kinds: Sequence[str], contestants: Sequence[str] | None = None) -> Plan:
    """Restrict a plan to cells of these kinds and contestants (default: all contestants). Cells that need excluded
    cells are excluded as well.

    A summary of selected contestants covers only the evaluations that are finished when it is computed.
    """
    excluded, waiting, partial_summaries = set[str](), list[GridCell](), dict[str, GridCell]()
    contestant_hashes = {cell.hash for cell in plan.cells if contestants is None or cell.contestant in contestants}
    for cell in plan.todo:
        needs, excluded_needs = set(cell.needs), excluded & set(cell.needs)
        is_summary = contestants is not None and cell.is_summary and bool(contestant_hashes & (needs - excluded_needs))
        is_selected = cell.kind in kinds and (cell.hash in contestant_hashes or is_summary)
        not_done = excluded_needs and all(plan.states[need] != "done" for need in excluded_needs)
        if is_selected and is_summary and not_done:
            partial_summaries[cell.hash] = replace(
                cell, needs=tuple(need for need in cell.needs if need not in excluded_needs)
            )
            excluded_needs = set()
        if is_selected and (cell.reason is not None or not excluded_needs):
            continue
        excluded.add(cell.hash)
        if is_selected:
            waiting.append(cell)
    states = plan.states | {cell.hash: store.state(cell) for cell in partial_summaries.values()}
    todo = [partial_summaries.get(cell.hash, cell) for cell in plan.todo if cell.hash not in excluded]
    changed = {cell.hash for cell in todo}
    return Plan(
        tuple(partial_summaries.get(cell.hash, cell) for cell in plan.cells),
        states,
        tuple(cell for cell in todo if states[cell.hash] != "done" or not cell.is_summary or changed & set(cell.needs)),
        tuple(waiting),
    )


def is_compared_by_episode(task: TaskConfig) -> bool:
    """Whether the summary of a task compares contestants episode by episode. It then needs the scores of all episodes,
    not only their means."""
    return task.question == "targets" and bool(task.oracles)


def _has_weights(results: Path, cell: GridCell) -> bool:
    """Whether the weights that a cell needs exist. An evaluation also needs the weights of all branches, which a run
    that was unpacked from an archive does not have."""
    assert cell.config is not None
    branches = cell.kind == "evaluate" and cell.config.train.branch_steps
    return weights_path(results, cell).is_file() and not (branches and Run(results / "runs" / cell.run).is_unpacked)


def weights_path(results: Path, cell: GridCell) -> Path:
    """Return the path of the weights of a cell's run."""
    return Run(results / "runs" / cell.run).weights
