"""The order in which the cells of a plan are computed. A cell waits for the cells that it needs, and fails if one of
them fails."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter

from iclbench.store.outcome import Outcome
from iclbench.store.state import State
from iclbench.sweep.cells import GridCell
from iclbench.sweep.plan import Plan


class Order:
    """The cells of a plan in the order of computation, each after all cells that it needs.

    Cells are grouped by task (cells of language models, by model), in the order of the plan. Within a task, the cells
    that evaluate a finished training run come before the next training run, so that the results of an interrupted sweep
    are complete for the finished runs. Near the end of the plan, training runs come first, so that short cells fill the
    free slots during the last training runs.
    """

    def __init__(self, plan: Plan, slots: int) -> None:
        self._todo = {cell.hash: cell for cell in plan.todo}
        self._cells = {cell.hash: cell for cell in plan.cells}
        self._states: dict[str, State] = {
            cell: "todo" if cell in self._todo else state for cell, state in plan.states.items()
        }
        self._reasons: dict[str, str] = {}
        self._open_needs = {cell.hash: {need for need in cell.needs if need in self._todo} for cell in plan.todo}
        self._followers: dict[str, list[str]] = {}
        for cell_hash, open_needs in self._open_needs.items():
            for need in open_needs:
                self._followers.setdefault(need, []).append(cell_hash)
        self._sorter = TopologicalSorter(self._open_needs)
        self._sorter.prepare()
        ranks = {affinity: i for i, affinity in enumerate(dict.fromkeys(cell.affinity for cell in plan.cells))}
        self._position = {cell.hash: (ranks[cell.affinity], i) for i, cell in enumerate(plan.todo)}
        self._few_trainings = 2 * slots
        self._unsettled_trainings = sum(cell.kind == "train" for cell in plan.todo)
        self._trainings: list[tuple[tuple[int, int], GridCell]] = []
        self._other_cells: list[tuple[tuple[int, int], GridCell]] = []
        self._without_work: deque[tuple[GridCell, Outcome]] = deque()
        self._queued: set[str] = set()
        self._running: set[str] = set()
        self._queue_ready()

    def take(self) -> GridCell | None:
        """Take the next cell that can be computed now from the queue; None if the queue is empty."""
        queues = [queue for queue in (self._other_cells, self._trainings) if queue]
        if not queues:
            return None
        if self._unsettled_trainings <= self._few_trainings:
            queue = queues[-1]
        else:
            queue = min(queues, key=lambda queue: queue[0][0][0])  # training comes last within a task
        cell = heapq.heappop(queue)[1]
        self._queued.discard(cell.hash)
        self._running.add(cell.hash)
        return cell

    def followers(self, cells: Iterable[GridCell]) -> list[GridCell]:
        """Return the cells that wait only for these cells and can be computed directly after them, in the order of the
        plan."""
        before = {cell.hash for cell in cells}
        followers = {follower for cell in before for follower in self._followers.get(cell, ())}
        cells_after = [self._todo[cell] for cell in followers - before if self._open_needs[cell] <= before]
        ready = [
            cell
            for cell in cells_after
            if cell.reason is None and not cell.is_summary and self._has_needs(cell, before)
        ]
        return sorted(ready, key=lambda cell: self._position[cell.hash])

    def _has_needs(self, cell: GridCell, before: set[str]) -> bool:
        """Whether all cells that the cell needs are done or in `before`."""
        return all(need in before or self._states.get(need) == "done" for need in cell.needs)

    def reserve(self, cells: Iterable[GridCell]) -> bool:
        """Mark these cells as already running, so that `take` does not return them. Return whether any of them is in
        the plan's cells to do."""
        todo = [self._todo[cell.hash] for cell in cells if cell.hash in self._todo]
        for cell in todo:
            if cell.hash in self._queued:
                self._withdraw(cell)
                self._running.add(cell.hash)
        return bool(todo)

    def may_settle(self, cell: GridCell) -> bool:
        """Whether all cells that the cell needs have an outcome."""
        return not self._open_needs.get(cell.hash)

    def is_open(self, cell: GridCell) -> bool:
        """Whether the cell is running or queued. Such a cell waits for no other cell and has no outcome yet."""
        return cell.hash in self._running or cell.hash in self._queued

    def _withdraw(self, cell: GridCell) -> None:
        """Remove a cell from the queues and from the running cells."""
        self._running.discard(cell.hash)
        if cell.hash in self._queued:
            self._queued.discard(cell.hash)
            queue = self._queue(cell)
            queue.remove((self._position[cell.hash], cell))
            heapq.heapify(queue)

    def _queue(self, cell: GridCell) -> list[tuple[tuple[int, int], GridCell]]:
        return self._trainings if cell.kind == "train" else self._other_cells

    def put_back(self, cell: GridCell) -> None:
        """Put a cell into the queue, from which `take` returns it."""
        self._running.discard(cell.hash)
        if cell.hash not in self._queued:
            self._queued.add(cell.hash)
            heapq.heappush(self._queue(cell), (self._position[cell.hash], cell))

    def settle(self, cell: GridCell, outcome: Outcome) -> None:
        """Record the outcome of a cell, and queue the cells that waited only for it."""
        self._withdraw(cell)
        self._states[cell.hash] = outcome.status
        self._unsettled_trainings -= cell.kind == "train"
        if outcome.reason:
            self._reasons[cell.hash] = outcome.reason
        self._sorter.done(cell.hash)
        for follower in self._followers.get(cell.hash, ()):
            self._open_needs[follower].discard(cell.hash)
        self._queue_ready()

    def cells_without_work(self) -> Iterator[tuple[GridCell, Outcome]]:
        """Yield, with their outcomes, the cells that need no computation because they are not applicable or because a
        cell that they need has failed."""
        while self._without_work:
            yield self._without_work.popleft()

    def _queue_ready(self) -> None:
        """Queue the cells that no longer wait for another cell, in the order of the plan."""
        for cell in sorted(self._sorter.get_ready(), key=self._position.__getitem__):
            self._queue_cell(self._todo[cell])

    def _queue_cell(self, cell: GridCell) -> None:
        """Queue a cell that waits for no other cell, or set its outcome if it cannot be computed."""
        if cell.reason is not None:
            self._without_work.append((cell, Outcome("skipped", cell.reason)))
            return
        # A summary covers the evaluations that exist.
        missing_needs = [] if cell.is_summary else [n for n in cell.needs if self._states.get(n) != "done"]
        settled_needs = [need for need in missing_needs if self._states.get(need, "todo") != "todo"]
        if not missing_needs:
            self.put_back(cell)
        elif settled_needs:
            self._without_work.append((cell, self._outcome_without(self._cells[settled_needs[0]])))

    def _outcome_without(self, need: GridCell) -> Outcome:
        """Return the outcome of a cell that needs the cell `need`, which was skipped, has diverged or has failed."""
        need_name = {"train": "its training", "evaluate": "its evaluation"}.get(need.kind, f"its {need.kind}")
        reason = self._reasons.get(need.hash) or need.reason or "see its row"
        if self._states[need.hash] == "skipped":
            return Outcome("skipped", f"{need_name} is not applicable: {reason}")
        if self._states[need.hash] == "diverged":
            return Outcome("diverged", f"{need_name} diverged (run '{need.run}'): {reason}")
        return Outcome("failed", f"{need_name} failed (run '{need.run}'): {reason}")
