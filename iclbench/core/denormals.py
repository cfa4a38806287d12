"""Numbers below the least normal one (1.2e-38 in single precision), for which many processors take a hundred times as
long: products of strong decays and of small probabilities pass through them on their way to 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LEAST = sys.float_info.min


@contextmanager
def flushed() -> Iterator[None]:
    """They count as 0 in what this thread computes on a CPU meanwhile.

    >>> with flushed():
    ...     float(torch.tensor(1e-39) * 0.5)
    0.0
    """
    before = _LEAST * 0.5 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
