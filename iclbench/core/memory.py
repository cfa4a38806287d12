"""One-line messages for out-of-memory errors, with advice on what to reduce.

Each library raises its own error. Errors of torch are recognised by their messages, since this module does not import
torch.
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

TRAINING_REMEDY = "a smaller -o train.batch, -o backbone.width or --preset"
EVALUATION_REMEDY = (
    "fewer points (--extrapolate, --shift points-N), or a run with a smaller -o backbone.width or --preset"
)
PROBE_REMEDY = (
    "a smaller --context, --fit, --tasks, --contexts or --queries, or a run with a smaller -o backbone.width or "
    "--preset"
)
REAL_TABLE_REMEDY = "a table (--csv, --data-dir) with fewer rows or columns, or a machine with more memory"
RESULT_TABLE_REMEDY = "a results folder with fewer tables, or a machine with more memory"
COST_REMEDY = (
    "fewer --points, --queries, --update or --episodes, or a run with a smaller -o train.batch, -o backbone.width "
    "or --preset"
)


class OutOfMemoryError(IclbenchError):
    """The machine or the device does not have enough memory."""

    code = "out-of-memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this is an out-of-memory error of a library.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    >>> is_out_of_memory(RuntimeError("shapes differ")), is_out_of_memory(OutOfMemoryError("out of memory"))
    (False, False)
    """
    if isinstance(error, IclbenchError):  # its message already contains advice
        return False
    return isinstance(error, MemoryError) or bool(_MESSAGES.search(str(error)))


def advice(error: BaseException, remedy: str) -> str:
    """Return one line with the size of the failed request and the remedy.

    >>> advice(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), TRAINING_REMEDY)
    'out of memory (20.00 GiB requested): use a smaller -o train.batch, -o backbone.width or --preset'
    """
    request = _REQUEST.search(str(error))
    size = ""
    if request:
        amount = nbytes(int(request[1])) if request[2].lower() == "bytes" else f"{request[1]} {request[2]}"
        size = f" ({amount} requested)"
    return f"out of memory{size}: use {remedy}"


@contextmanager
def memory_advice(remedy: str) -> Iterator[None]:
    """If the block runs out of memory, raise `OutOfMemoryError` with a message that names the remedy."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(advice(error, remedy)) from error
