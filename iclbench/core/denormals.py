"""Flush denormal numbers (below 1.2e-38 in single precision) to 0.

Many processors compute a hundred times more slowly with denormal numbers. Products of strong decays or of small
probabilities become denormal before they underflow to 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SMALLEST_NORMAL = sys.float_info.min


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Within the block, CPU computations of this thread treat denormal numbers as 0.

    >>> with flush_denormals():
    ...     float(torch.tensor(1e-39) * 0.5)
    0.0
    """
    was_flushing = _SMALLEST_NORMAL * 0.5 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_flushing)
