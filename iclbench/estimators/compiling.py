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
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}  # C callbacks are not used
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available"
        return njit(**options)(function)
