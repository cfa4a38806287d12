"""The engine of a sweep. It submits a bundle of cells to an `Executor` as soon as a slot is free and the cells that the
bundle needs are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from iclbench.core.context import Context
from iclbench.core.errors import one_line
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle, Work, work_through
from iclbench.sweep.cells import GridCell
from iclbench.sweep.executor import AdoptingExecutor, Executor, SubmittingExecutor, WorkerStartError
from iclbench.sweep.order import Order
from iclbench.sweep.plan import Plan
from iclbench.sweep.work import work as work_on_cell

# Maximum number of attempts per sweep for a cell whose worker dies. One retry is useful because the system may have
# killed the wrong process when memory was short, but a cell that needs too much memory must not be repeated forever.
MAX_ATTEMPTS = 2
# Number of seconds that workers have to write their checkpoints and end.
GRACE_SECONDS = 20.0


@runtime_checkable
class SweepObserver(Protocol):
    """An object that is notified of the events of a sweep."""

    def on_start(self, cell: GridCell) -> None:
        """Called when a worker starts to compute the cell."""

    def on_finish(self, cell: GridCell, outcome: Outcome) -> None:
        """Called when the cell has an outcome."""

    def on_retry(self, cell: GridCell, reason: str) -> None:
        """Called when the worker of the cell has died and the cell will be tried again."""


@dataclass(frozen=True)
class Bundling:
    """The rule that groups cells into bundles.

    A bundle contains a cell and the cells that wait only for it. Further cells are added until the bundle is long
    enough for a job.

    Attributes:
        seconds: expected duration at which a bundle is long enough.
        estimate: function that returns the expected seconds of a cell, or None if they are unknown.
        is_grouped: whether bundles may have more than one cell.
    """

    seconds: float
    estimate: Callable[[GridCell], float | None]
    is_grouped: bool = True

    # Expected seconds of a cell without an estimate.
    UNKNOWN_SECONDS: ClassVar = 60.0

    def expected_seconds(self, cell: GridCell) -> float:
        """Return the expected seconds of a cell; `UNKNOWN_SECONDS` without an estimate."""
        seconds = self.estimate(cell)
        return self.UNKNOWN_SECONDS if seconds is None else seconds

    def take(self, order: Order) -> tuple[GridCell, ...]:
        """Take the cells of the next bundle from the order; empty if no cell can be computed now."""
        cells: list[GridCell] = []
        while not cells or (self.is_grouped and sum(map(self.expected_seconds, cells)) < self.seconds):
            if (cell := order.take()) is None:
                break
            cells += [cell, *(order.followers([*cells, cell]) if self.is_grouped else ())]
        return tuple(cells)


# Each bundle has one cell.
SINGLE_CELLS = Bundling(0.0, lambda cell: None, is_grouped=False)


def run(
    plan: Plan,
    store: CellStore,
    executor: Executor,
    context: Context,
    observer: SweepObserver,
    work: Work = work_on_cell,
    bundling: Bundling = SINGLE_CELLS,
) -> dict[str, Outcome]:
    """Compute the cells of a plan and return their outcomes by hash.

    If a cell fails, the cells that need it fail as well, with a reason that names the failed run, and all other cells
    continue. A cell is not computed if it needs a cell that is not done and not in the plan.

    Raises:
        KeyboardInterrupt: raised after all workers have ended. Finished cells are recorded.
        WorkerStartError: workers cannot be set up.
    """
    order = Order(plan, executor.slots)
    running_bundles: dict[Future[dict[str, Outcome]], Bundle] = {}
    outcomes: dict[str, Outcome] = {}
    attempts: dict[str, int] = {}
    todo = {cell.hash: cell for cell in plan.todo}

    def settle(cell: GridCell, outcome: Outcome) -> None:
        outcomes[cell.hash] = outcome
        order.settle(cell, outcome)
        observer.on_finish(cell, outcome)

    def settle_all(bundle: Bundle, bundle_outcomes: Mapping[str, Outcome]) -> list[GridCell]:
        """Settle the cells that have an outcome. Put the other cells back into the queue and return them."""
        for cell in bundle.cells:
            # Cells in a bundle of an earlier sweep may already be done, or may wait for other cells of this plan.
            is_new = cell.hash in todo and cell.hash not in outcomes
            if cell.hash in bundle_outcomes and is_new and order.may_settle(cell):
                settle(todo[cell.hash], bundle_outcomes[cell.hash])
        open_cells = [cell for cell in bundle.cells if cell.hash not in bundle_outcomes and order.is_open(cell)]
        for cell in open_cells:
            order.put_back(cell)
        return open_cells

    def collect(future: Future[dict[str, Outcome]]) -> None:
        bundle = running_bundles.pop(future)
        try:
            bundle_outcomes, reason = future.result(), "its job ended without an outcome"
        except WorkerStartError:
            raise
        except Exception as error:  # an error in one bundle must not stop the other cells
            bundle_outcomes, reason = getattr(error, "finished", {}), one_line(error)
        open_cells = settle_all(bundle, bundle_outcomes)
        if not open_cells:
            return
        # The first open cell was being computed when the worker died.
        failed_cell = todo[open_cells[0].hash]
        attempts[failed_cell.hash] = attempts.get(failed_cell.hash, 0) + 1
        if attempts[failed_cell.hash] < MAX_ATTEMPTS:
            observer.on_retry(failed_cell, reason)
            return
        outcome = Outcome("failed", f"{reason}, {MAX_ATTEMPTS} times; the same command tries again")
        store.record(failed_cell, outcome, context)
        settle(failed_cell, outcome)

    if isinstance(executor, AdoptingExecutor):
        for bundle, future in executor.adopted(lambda bundle: order.reserve(bundle.cells)):
            running_bundles[future] = bundle
            for cell in bundle.cells:
                if cell.hash in todo:
                    observer.on_start(cell)
    try:
        while True:
            for cell, outcome in order.cells_without_work():
                store.record(cell, outcome, context)
                settle(cell, outcome)
            while len(running_bundles) < executor.slots and (cells := bundling.take(order)):
                bundle = Bundle(cells, context)
                running_bundles[executor.submit(work_through, bundle, work)] = bundle
                for cell in cells:
                    observer.on_start(cell)
            if not running_bundles:
                return outcomes
            for future in wait(running_bundles, return_when=FIRST_COMPLETED).done:
                collect(future)
    except BaseException:
        executor.stop(GRACE_SECONDS)
        for future, bundle in list(running_bundles.items()):
            if future.done() and not future.cancelled() and future.exception() is None:
                settle_all(bundle, future.result())
        raise


@dataclass(frozen=True)
class Submission:
    """The result of a submission to a scheduler.

    Attributes:
        jobs: number of submitted bundles.
        cells: number of cells in the submitted bundles.
        refused_jobs: number of bundles that the scheduler refused.
        refused_cells: number of cells in the refused bundles.
        reason: the scheduler's message for the first refused bundle; empty if none was refused.
    """

    jobs: int
    cells: int
    refused_jobs: int = 0
    refused_cells: int = 0
    reason: str = ""


def submit(
    plan: Plan,
    store: CellStore,
    executor: SubmittingExecutor,
    context: Context,
    bundling: Bundling,
    work: Work = work_on_cell,
) -> Submission:
    """Submit all cells that can be computed now and are not queued yet, without waiting for their results.

    Raises:
        WorkerStartError: the scheduler refuses all jobs.
    """
    order = Order(plan, executor.slots)
    for cell, outcome in order.cells_without_work():
        store.record(cell, outcome, context)
    for bundle in executor.queued():
        order.reserve(bundle.cells)
    submissions: list[tuple[int, Future[dict[str, Outcome]]]] = []
    while bundle_cells := bundling.take(order):
        submissions.append((len(bundle_cells), executor.submit(work_through, Bundle(bundle_cells, context), work)))
    executor.flush()
    errors = [
        (cells, error) for cells, future in submissions if future.done() and (error := future.exception()) is not None
    ]
    if errors and len(errors) == len(submissions):
        raise errors[0][1]
    refused_cells = sum(cells for cells, _ in errors)
    jobs, cells = len(submissions) - len(errors), sum(cells for cells, _ in submissions) - refused_cells
    return Submission(jobs, cells, len(errors), refused_cells, str(errors[0][1]) if errors else "")
