"""CPU seconds of one thread's work, as the benchmarks beside this file take them."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def least(work: Callable[[], object], repeats: int = 3) -> float:
    """Of the fastest call."""
    return min(cpu_seconds(work) for _ in range(repeats))


def warm(work: Callable[[], object], repeats: int = 3) -> float:
    """The same after a call that warms up."""
    work()
    return least(work, repeats)
