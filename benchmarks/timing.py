"""Measurement of CPU seconds of one thread for the other benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def least(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the CPU seconds of the fastest call."""
    return min(cpu_seconds(work) for _ in range(repeats))


def least_in_turn(*works: Callable[[], object], repeats: int = 15) -> list[float]:
    """Return the CPU seconds of the fastest call of each, after a warm-up. Calls alternate, so that a slow moment
    affects all.
    """
    rounds = [[cpu_seconds(work) for work in works] for _ in range(1 + repeats)]
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def warm(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the CPU seconds of the fastest call after a warm-up."""
    work()
    return least(work, repeats)
