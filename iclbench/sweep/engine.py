"""The engine: hands cells to an `Executor` as soon as what they need is there, and keeps all its slots busy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol, runtime_checkable

from iclbench.core.context import Context
from iclbench.core.errors import one_line
from iclbench.sweep.cells import GridCell
from iclbench.sweep.executor import Executor, WorkerStartError
from iclbench.sweep.order import Order
from iclbench.sweep.outcome import Outcome
from iclbench.sweep.plan import Plan
from iclbench.sweep.store import Store
from iclbench.sweep.work import work as work_on_cell

# A cell whose worker died is tried so often in one sweep: whoever kills processes for want of memory may have meant
# another one, but a cell that needs too much memory must not be tried for ever.
ATTEMPTS = 2
# Seconds that workers have to write their checkpoints and end.
GRACE = 20.0

Work = Callable[[GridCell, Context], Outcome]


@runtime_checkable
class Report(Protocol):
    """An observer of a sweep."""

    def started(self, cell: GridCell) -> None:
        """A worker takes up the cell."""

    def finished(self, cell: GridCell, outcome: Outcome) -> None:
        """This is what became of it."""

    def again(self, cell: GridCell, reason: str) -> None:
        """Its worker died; it is put back and will be started once more."""


def run(
    plan: Plan, store: Store, executor: Executor, context: Context, report: Report, work: Work = work_on_cell
) -> dict[str, Outcome]:
    """Do all that a plan has to do; returns the outcomes by the cells' hashes.

    A failing cell fails those that need it, with a reason that names it, and stops nobody else. Cells that need what is
    neither there nor in the plan are left alone.

    Raises:
        KeyboardInterrupt: after all workers have ended. What they had finished is recorded.
        WorkerStartError: no worker can be set up.
    """
    order = Order(plan, executor.slots)
    running: dict[Future[Outcome], GridCell] = {}
    outcomes: dict[str, Outcome] = {}
    attempts: dict[str, int] = {}

    def settle(cell: GridCell, outcome: Outcome) -> None:
        outcomes[cell.hash] = outcome
        order.settle(cell, outcome)
        report.finished(cell, outcome)

    def collect(future: Future[Outcome]) -> None:
        cell = running.pop(future)
        try:
            outcome = future.result()
        except WorkerStartError:
            raise
        except Exception as error:  # whatever it is, it stops no other cell
            if attempts[cell.hash] < ATTEMPTS:
                report.again(cell, one_line(error))
                order.put_back(cell)
                return
            outcome = Outcome("failed", f"{one_line(error)}, {ATTEMPTS} times; the same command tries again")
            store.record(cell, outcome, context)
        settle(cell, outcome)

    try:
        while True:
            for cell, outcome in order.given_up():
                store.record(cell, outcome, context)
                settle(cell, outcome)
            while len(running) < executor.slots and (chosen := order.take()):
                attempts[chosen.hash] = attempts.get(chosen.hash, 0) + 1
                running[executor.submit(work, chosen, context)] = chosen
                report.started(chosen)
            if not running:
                return outcomes
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                collect(future)
    except BaseException:
        executor.stop(GRACE)
        for future in [f for f in running if f.done() and not f.cancelled() and f.exception() is None]:
            settle(running[future], future.result())
        raise
