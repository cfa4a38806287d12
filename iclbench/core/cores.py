"""The cores that this process may use."""

from __future__ import annotations

import os


def count_available() -> int:
    """The number of cores that `taskset` or a scheduler gives to this process; the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
