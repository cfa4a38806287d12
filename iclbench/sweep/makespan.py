"""How long a plan takes on so many workers, by going through it with the seconds that cells are expected to take."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engine import ALONE, Bundling
from iclbench.sweep.order import Order
from iclbench.sweep.plan import Plan


@dataclass(frozen=True)
class Makespan:
    """What came of it.

    Attributes:
        seconds: until the last cell is done.
        jobs: how many cells each had that was started, those that died among them.
        busy: seconds of work that counts, of all workers together.
        workers: how many.
    """

    seconds: float
    jobs: tuple[int, ...]
    busy: float
    workers: int

    @property
    def efficiency(self) -> float:
        """The share of the workers' time that is such work."""
        return self.busy / (self.seconds * self.workers) if self.seconds else 1.0


def simulate(
    plan: Plan,
    workers: int,
    bundling: Bundling = ALONE,
    start: float = 0.0,
    failures: float = 0.0,
    seed: int = 0,
    takes: Callable[[GridCell], float] | None = None,
) -> Makespan:
    """Go through a plan as the engine does.

    Args:
        plan: what is to do.
        workers: bundles side by side.
        bundling: which cells go together, and what each takes.
        start: seconds until a job begins to work.
        failures: the share of jobs that die half way, and are started again.
        seed: of which ones.
        takes: seconds of a cell, where more is known of it now than when cells are put together.
    """
    draw, order, takes = random.Random(seed), Order(plan, workers), takes or bundling.expected
    running: list[tuple[float, int, tuple[GridCell, ...], bool]] = []
    now, busy = 0.0, 0.0
    jobs: list[int] = []
    while True:
        for cell, outcome in order.given_up():
            order.settle(cell, outcome)
        while len(running) < workers and (cells := bundling.take(order)):
            took = sum(map(takes, cells))
            died = draw.random() < failures
            jobs.append(len(cells))
            heapq.heappush(running, (now + start + (took / 2 if died else took), len(jobs), cells, died))
        if not running:
            return Makespan(now, tuple(jobs), busy, workers)
        now, _, cells, died = heapq.heappop(running)
        for cell in cells:
            if not died:
                order.settle(cell, Outcome("done"))
                busy += takes(cell)
            elif order.is_open(cell):
                order.put_back(cell)
