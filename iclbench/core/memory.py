"""Running out of memory, in one line that says what to make smaller.

Every library has its own error for it. Nothing here imports torch: its errors are known by what they say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from iclbench.core.errors import IclbenchError
from iclbench.core.formats import nbytes

_SAID = re.compile(
    r"out of memory|can(no|')t allocate memory|not enough memory|unable to allocate|bad_alloc|ALLOC_FAILED"
    r"|Storage size calculation overflowed|failed to map segment|can't start new thread",
    re.IGNORECASE,
)
_WANTED = re.compile(r"allocate (\d+(?:\.\d+)?) ?(bytes|[KMGTP]i?B)", re.IGNORECASE)

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
    """There is not as much memory as was asked for."""

    code = "out-of-memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how a library says that memory is short.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    >>> is_out_of_memory(RuntimeError("shapes differ")), is_out_of_memory(OutOfMemoryError("out of memory"))
    (False, False)
    """
    if isinstance(error, IclbenchError):  # it says already what to do
        return False
    return isinstance(error, MemoryError) or bool(_SAID.search(str(error)))


def advice(error: BaseException, smaller: str) -> str:
    """One line: what could not be had, and what to make smaller.

    >>> advice(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), IN_TRAINING)
    'out of memory (20.00 GiB wanted at once): take a smaller -o train.batch, -o backbone.width or --preset'
    """
    request = _WANTED.search(str(error))
    size = ""
    if request:
        amount = nbytes(int(request[1])) if request[2].lower() == "bytes" else f"{request[1]} {request[2]}"
        size = f" ({amount} wanted at once)"
    return f"out of memory{size}: take {smaller}"


@contextmanager
def advised(smaller: str) -> Iterator[None]:
    """Say what to make smaller where the block runs out of memory.

    Raises:
        OutOfMemoryError: it did.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(advice(error, smaller)) from error
