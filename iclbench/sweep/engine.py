"""The engine: hands bundles of cells to an `Executor` when what they need is there, and keeps all its slots busy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from iclbench.core.context import Context
from iclbench.core.errors import one_line
from iclbench.store.cells import Store
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle, Work, work_through
from iclbench.sweep.cells import GridCell
from iclbench.sweep.executor import Adopting, Executor, Submitting, WorkerStartError
from iclbench.sweep.order import Order
from iclbench.sweep.plan import Plan
from iclbench.sweep.work import work as work_on_cell

# A cell whose worker died is tried so often in one sweep: whoever kills processes for want of memory may have meant
# another one, but a cell that needs too much memory must not be tried for ever.
ATTEMPTS = 2
# Seconds that workers have to write their checkpoints and end.
GRACE = 20.0


@runtime_checkable
class Report(Protocol):
    """An observer of a sweep."""

    def started(self, cell: GridCell) -> None:
        """A worker takes up the cell."""

    def finished(self, cell: GridCell, outcome: Outcome) -> None:
        """This is what became of it."""

    def again(self, cell: GridCell, reason: str) -> None:
        """Its worker died; it is put back and will be started once more."""


@dataclass(frozen=True)
class Bundling:
    """How many cells go together: whatever waits for a cell alone goes with it, and then others, until all of them are
    worth the start of a job.

    Attributes:
        seconds: that are worth it.
        of: those that a cell will take; None: not known.
        together: whether any go together at all.
    """

    seconds: float
    of: Callable[[GridCell], float | None]
    together: bool = True

    # Of a cell about which nothing is known.
    UNKNOWN: ClassVar = 60.0

    def expected(self, cell: GridCell) -> float:
        """Seconds that a cell will take, as far as one can say."""
        known = self.of(cell)
        return self.UNKNOWN if known is None else known

    def take(self, order: Order) -> tuple[GridCell, ...]:
        """Those that go together next; empty: none can be worked on now."""
        cells: list[GridCell] = []
        while not cells or (self.together and sum(map(self.expected, cells)) < self.seconds):
            if (first := order.take()) is None:
                break
            cells += [first, *(order.followers([*cells, first]) if self.together else ())]
        return tuple(cells)


# Every cell is a call of its own.
ALONE = Bundling(0.0, lambda cell: None, together=False)


def run(
    plan: Plan,
    store: Store,
    executor: Executor,
    context: Context,
    report: Report,
    work: Work = work_on_cell,
    bundling: Bundling = ALONE,
) -> dict[str, Outcome]:
    """Do all that a plan has to do; returns the outcomes by the cells' hashes.

    A failing cell fails those that need it, with a reason that names it, and stops nobody else. Cells that need what is
    neither there nor in the plan are left alone.

    Raises:
        KeyboardInterrupt: after all workers have ended. What they had finished is recorded.
        WorkerStartError: no worker can be set up.
    """
    order = Order(plan, executor.slots)
    running: dict[Future[dict[str, Outcome]], Bundle] = {}
    outcomes: dict[str, Outcome] = {}
    attempts: dict[str, int] = {}
    todo = {cell.hash: cell for cell in plan.todo}

    def settle(cell: GridCell, outcome: Outcome) -> None:
        outcomes[cell.hash] = outcome
        order.settle(cell, outcome)
        report.finished(cell, outcome)

    def settle_all(bundle: Bundle, found: Mapping[str, Outcome]) -> list[GridCell]:
        """Settle those of which it is known what became of them; returns the others that wait for nothing, to be taken
        again."""
        for cell in bundle.cells:
            # Of an earlier sweep's bundle some may be done already, or wait for others here.
            if cell.hash in found and cell.hash in todo and cell.hash not in outcomes and order.may_settle(cell):
                settle(todo[cell.hash], found[cell.hash])
        left = [cell for cell in bundle.cells if cell.hash not in found and order.is_open(cell)]
        for cell in left:
            order.put_back(cell)
        return left

    def collect(future: Future[dict[str, Outcome]]) -> None:
        bundle = running.pop(future)
        try:
            found, reason = future.result(), "its job ended without a word about it"
        except WorkerStartError:
            raise
        except Exception as error:  # whatever it is, it stops no other cell
            found, reason = getattr(error, "finished", {}), one_line(error)
        left = settle_all(bundle, found)
        if not left:
            return
        first = todo[left[0].hash]
        attempts[first.hash] = attempts.get(first.hash, 0) + 1
        if attempts[first.hash] < ATTEMPTS:
            report.again(first, reason)
            return
        outcome = Outcome("failed", f"{reason}, {ATTEMPTS} times; the same command tries again")
        store.record(first, outcome, context)
        settle(first, outcome)

    if isinstance(executor, Adopting):
        for bundle, future in executor.adopted(lambda bundle: order.reserve(bundle.cells)):
            running[future] = bundle
            for cell in bundle.cells:
                if cell.hash in todo:
                    report.started(cell)
    try:
        while True:
            for cell, outcome in order.given_up():
                store.record(cell, outcome, context)
                settle(cell, outcome)
            while len(running) < executor.slots and (cells := bundling.take(order)):
                bundle = Bundle(cells, context)
                running[executor.submit(work_through, bundle, work)] = bundle
                for cell in cells:
                    report.started(cell)
            if not running:
                return outcomes
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                collect(future)
    except BaseException:
        executor.stop(GRACE)
        for future in [f for f in running if f.done() and not f.cancelled() and f.exception() is None]:
            settle_all(running[future], future.result())
        raise


@dataclass(frozen=True)
class Submitted:
    """What a scheduler has taken, and what it has not.

    Attributes:
        jobs: bundles that were submitted.
        cells: in these.
        refused: bundles that the scheduler did not take.
        left: cells in these.
        why: what it said.
    """

    jobs: int
    cells: int
    refused: int = 0
    left: int = 0
    why: str = ""


def submit(
    plan: Plan, store: Store, executor: Submitting, context: Context, bundling: Bundling, work: Work = work_on_cell
) -> Submitted:
    """Submit all that waits for nothing and is not in the queue already, and leave.

    Raises:
        WorkerStartError: the scheduler takes no job.
    """
    order = Order(plan, executor.slots)
    for cell, outcome in order.given_up():
        store.record(cell, outcome, context)
    for bundle in executor.queued():
        order.reserve(bundle.cells)
    handed: list[tuple[int, Future[dict[str, Outcome]]]] = []
    while taken := bundling.take(order):
        handed.append((len(taken), executor.submit(work_through, Bundle(taken, context), work)))
    executor.flush()
    errors = [(cells, error) for cells, future in handed if future.done() and (error := future.exception()) is not None]
    if errors and len(errors) == len(handed):
        raise errors[0][1]
    left = sum(cells for cells, _ in errors)
    jobs, cells = len(handed) - len(errors), sum(cells for cells, _ in handed) - left
    return Submitted(jobs, cells, len(errors), left, str(errors[0][1]) if errors else "")
