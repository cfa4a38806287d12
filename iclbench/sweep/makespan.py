"""Simulation of the time that a plan takes on a number of workers, from the expected seconds of its cells."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engine import SINGLE_CELLS, Bundling
from iclbench.sweep.order import Order
from iclbench.sweep.plan import Plan


@dataclass(frozen=True)
class Makespan:
    """The result of a simulation.

    Attributes:
        seconds: time until the last cell is done.
        jobs: number of cells in each started job, including jobs that died.
        busy_seconds: seconds of successful work, summed over all workers.
        workers: number of workers.
    """

    seconds: float
    jobs: tuple[int, ...]
    busy_seconds: float
    workers: int

    @property
    def efficiency(self) -> float:
        """The share of the workers' time that is spent on successful work."""
        return self.busy_seconds / (self.seconds * self.workers) if self.seconds else 1.0


def simulate(
    plan: Plan,
    workers: int,
    bundling: Bundling = SINGLE_CELLS,
    start_seconds: float = 0.0,
    failure_rate: float = 0.0,
    seed: int = 0,
    cell_seconds: Callable[[GridCell], float] | None = None,
) -> Makespan:
    """Simulate the engine on a plan.

    Args:
        plan: the plan.
        workers: number of bundles that run in parallel.
        bundling: the rule that groups cells into bundles, with the expected seconds of a cell.
        start_seconds: seconds between the start of a job and the start of its first cell.
        failure_rate: share of jobs that die halfway; their cells are computed again.
        seed: seed of the random failures.
        cell_seconds: function that returns the true seconds of a cell (default: the expected seconds of `bundling`).
    """
    generator, order, cell_seconds = (
        random.Random(seed),
        Order(plan, workers),
        cell_seconds or bundling.expected_seconds,
    )
    job_ends: list[tuple[float, int, tuple[GridCell, ...], bool]] = []
    now, busy_seconds = 0.0, 0.0
    jobs: list[int] = []
    while True:
        for cell, outcome in order.cells_without_work():
            order.settle(cell, outcome)
        while len(job_ends) < workers and (cells := bundling.take(order)):
            bundle_seconds = sum(map(cell_seconds, cells))
            is_dead = generator.random() < failure_rate
            jobs.append(len(cells))
            end = now + start_seconds + (bundle_seconds / 2 if is_dead else bundle_seconds)
            heapq.heappush(job_ends, (end, len(jobs), cells, is_dead))
        if not job_ends:
            return Makespan(now, tuple(jobs), busy_seconds, workers)
        now, _, cells, is_dead = heapq.heappop(job_ends)
        for cell in cells:
            if not is_dead:
                order.settle(cell, Outcome("done"))
                busy_seconds += cell_seconds(cell)
            elif order.is_open(cell):
                order.put_back(cell)
