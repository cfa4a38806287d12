"""The number of CPU cores that this process may use."""

from __future__ import annotations

import os


def count_available() -> int:
    """Return the number of CPU cores that this process may use. `taskset` or a scheduler may allow fewer than the
    machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
