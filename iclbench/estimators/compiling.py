"""Just-in-time compilation of loops with numba, with a cache on disk for later processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call to machine code that releases the GIL.

    Operations are not reordered or fused (no fast math), because equality with the libraries depends on every
    rounding step. The machine code is cached next to the source or in the user's cache folder; `NUMBA_CACHE_DIR` sets
    another folder. If these folders are read-only, each process compiles the function again.
    """
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "no locator available"
        return njit(nogil=True, error_model="numpy")(function)
