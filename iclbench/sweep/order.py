"""Which cell is next: what each cell waits for, and what follows when that has failed."""

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
    """The cells of a plan, one by one, each when all that it needs is settled.

    Task by task, of language models model by model, in the plan's order, and within a task whatever a finished training
    has made possible before the next training, so that a sweep that is stopped has whole rows. Only near the end
    trainings go first: short cells then fill the slots while the last ones train, and no slot is left with a training
    that began last.
    """

    def __init__(self, plan: Plan, slots: int) -> None:
        self._todo = {cell.hash: cell for cell in plan.todo}
        self._cells = {cell.hash: cell for cell in plan.cells}
        self._states: dict[str, State] = {
            cell: "todo" if cell in self._todo else state for cell, state in plan.states.items()
        }
        self._reasons: dict[str, str] = {}
        self._waits = {c.hash: {n for n in c.needs if n in self._todo} for c in plan.todo}
        self._followed: dict[str, list[str]] = {}
        for name, waits in self._waits.items():
            for need in waits:
                self._followed.setdefault(need, []).append(name)
        self._needs = TopologicalSorter(self._waits)
        self._needs.prepare()
        places = {name: i for i, name in enumerate(dict.fromkeys(cell.affinity for cell in plan.cells))}
        self._place = {cell.hash: (places[cell.affinity], i) for i, cell in enumerate(plan.todo)}
        self._few = 2 * slots
        self._trainings_left = sum(cell.kind == "train" for cell in plan.todo)
        self._trainings: list[tuple[tuple[int, int], GridCell]] = []
        self._others: list[tuple[tuple[int, int], GridCell]] = []
        self._given_up: deque[tuple[GridCell, Outcome]] = deque()
        self._queued: set[str] = set()
        self._taken: set[str] = set()
        self._go_on()

    def take(self) -> GridCell | None:
        """The next cell that can be worked on now."""
        queues = [queue for queue in (self._others, self._trainings) if queue]
        if not queues:
            return None
        if self._trainings_left <= self._few:
            queue = queues[-1]
        else:
            queue = min(queues, key=lambda queue: queue[0][0][0])  # of the same task, not the training
        cell = heapq.heappop(queue)[1]
        self._queued.discard(cell.hash)
        self._taken.add(cell.hash)
        return cell

    def followers(self, cells: Iterable[GridCell]) -> list[GridCell]:
        """Those that wait for nothing but these, in the plan's order, and can be worked on right behind them."""
        before = {cell.hash for cell in cells}
        names = {name for cell in before for name in self._followed.get(cell, ()) if self._waits[name] <= before}
        found = [self._todo[name] for name in names - before]
        sound = [cell for cell in found if cell.reason is None and not cell.is_summary and self._has(cell, before)]
        return sorted(sound, key=lambda cell: self._place[cell.hash])

    def _has(self, cell: GridCell, before: set[str]) -> bool:
        """Whether all that it needs is done, but for these."""
        return all(need in before or self._states.get(need) == "done" for need in cell.needs)

    def reserve(self, cells: Iterable[GridCell]) -> bool:
        """Nobody else is to take these, which are being worked on already; false: none of them is to do."""
        own = [self._todo[cell.hash] for cell in cells if cell.hash in self._todo]
        for cell in own:
            if cell.hash in self._queued:
                self._claim(cell)
                self._taken.add(cell.hash)
        return bool(own)

    def may_settle(self, cell: GridCell) -> bool:
        """Whether all that it needs has become something."""
        return not self._waits.get(cell.hash)

    def is_open(self, cell: GridCell) -> bool:
        """Whether it waits for nothing and nothing has become of it."""
        return cell.hash in self._taken or cell.hash in self._queued

    def _claim(self, cell: GridCell) -> None:
        """Nobody is to take it any more: it has been worked on behind what it needs."""
        self._taken.discard(cell.hash)
        if cell.hash in self._queued:
            self._queued.discard(cell.hash)
            queue = self._queue(cell)
            queue.remove((self._place[cell.hash], cell))
            heapq.heapify(queue)

    def _queue(self, cell: GridCell) -> list[tuple[tuple[int, int], GridCell]]:
        return self._trainings if cell.kind == "train" else self._others

    def put_back(self, cell: GridCell) -> None:
        """To be taken again."""
        self._taken.discard(cell.hash)
        if cell.hash not in self._queued:
            self._queued.add(cell.hash)
            heapq.heappush(self._queue(cell), (self._place[cell.hash], cell))

    def settle(self, cell: GridCell, outcome: Outcome) -> None:
        """The cell is done, failed or skipped: those that waited for it may go."""
        self._claim(cell)
        self._states[cell.hash] = outcome.status
        self._trainings_left -= cell.kind == "train"
        if outcome.reason:
            self._reasons[cell.hash] = outcome.reason
        self._needs.done(cell.hash)
        for name in self._followed.get(cell.hash, ()):
            self._waits[name].discard(cell.hash)
        self._go_on()

    def given_up(self) -> Iterator[tuple[GridCell, Outcome]]:
        """Cells that nobody need work on, since they make no sense or since what they need has failed."""
        while self._given_up:
            yield self._given_up.popleft()

    def _go_on(self) -> None:
        """Whatever waits for nothing any more may go, in the plan's order."""
        for cell in sorted(self._needs.get_ready(), key=self._place.__getitem__):
            self._settled_needs(self._todo[cell])

    def _settled_needs(self, cell: GridCell) -> None:
        """All that the cell needs has become something, or is not in the plan."""
        if cell.reason is not None:
            self._given_up.append((cell, Outcome("skipped", cell.reason)))
            return
        # What follows from all evaluations of a task together follows from those that there are.
        missing = [] if cell.is_summary else [n for n in cell.needs if self._states.get(n) != "done"]
        known = [need for need in missing if self._states.get(need, "todo") != "todo"]
        if not missing:
            self.put_back(cell)
        elif known:
            self._given_up.append((cell, self._without(self._cells[known[0]])))

    def _without(self, need: GridCell) -> Outcome:
        """What becomes of a cell that needs one which is not done."""
        what = {"train": "its training", "evaluate": "its evaluation"}.get(need.kind, f"its {need.kind}")
        reason = self._reasons.get(need.hash) or need.reason or "see there"
        if self._states[need.hash] == "skipped":
            return Outcome("skipped", f"{what} makes no sense: {reason}")
        if self._states[need.hash] == "diverged":
            return Outcome("diverged", f"{what} diverged (run '{need.run}'): {reason}")
        return Outcome("failed", f"{what} failed (run '{need.run}'): {reason}")
