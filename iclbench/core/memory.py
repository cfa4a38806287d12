"""Errors of insufficient memory, as one line that says what to make smaller.

Each library has its own error. This module does not import torch and recognises its errors by their messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from iclbench.core.errors import IclbenchError
from iclbench.core.formats import nbytes

_MESSAGES = re.compile(
    r"out of memory|can(no|')t allocate memory|not enough memory|unable to allocate|bad_alloc|ALLOC_FAILED"
    r"|Storage size calculation overflowed|failed to map segment|can't start new thread",
    re.IGNORECASE,
)
_REQUEST = re.compile(r"allocate (\d+(?:\.\d+)?) ?(bytes|[KMGTP]i?B)", re.IGNORECASE)

IN_TRAINING = "a smaller -o train.batch, -o backbone.width or --preset"
IN_EVALUATION = "fewer points (--extrapolate, --shift points-N), or a run of a smaller -o backbone.width or --preset"
IN_PROBES = "fewer --tasks, --contexts or --queries, or a run of a smaller -o backbone.width or --preset"
IN_REAL_TABLES = "a table (--csv, --data-dir) of fewer rows or columns, or a machine with more memory"
IN_TABLES = "a results folder with fewer tables, or a machine with more memory"
IN_COSTS = (
    "fewer --points, --queries, --update or --episodes, or a run of a smaller -o train.batch, -o backbone.width or "
    "--preset"
)


class OutOfMemoryError(IclbenchError):
    """The memory of the machine or the device is not sufficient."""

    code = "out-of-memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is the error of a library for insufficient memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    >>> is_out_of_memory(RuntimeError("shapes differ")), is_out_of_memory(OutOfMemoryError("out of memory"))
    (False, False)
    """
    if isinstance(error, IclbenchError):  # its message already says what to do
        return False
    return isinstance(error, MemoryError) or bool(_MESSAGES.search(str(error)))


def advice(error: BaseException, smaller: str) -> str:
    """One line with the size of the failed request and with what to make smaller.

    >>> advice(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), IN_TRAINING)
    'out of memory (20.00 GiB wanted at once): take a smaller -o train.batch, -o backbone.width or --preset'
    """
    request = _REQUEST.search(str(error))
    size = ""
    if request:
        amount = nbytes(int(request[1])) if request[2].lower() == "bytes" else f"{request[1]} {request[2]}"
        size = f" ({amount} wanted at once)"
    return f"out of memory{size}: take {smaller}"


@contextmanager
def advised(smaller: str) -> Iterator[None]:
    """Raise `OutOfMemoryError` if the block runs out of memory; `smaller` is what the message says to make smaller."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(advice(error, smaller)) from error
