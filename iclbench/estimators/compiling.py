"""Machine code for the loops of trees, compiled by numba at the first call and cached on disk for the next process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as machine code that gives up the GIL. No fast mathematics: equality with the libraries hangs on
    every rounding, and so nothing is reordered or fused on any processor.

    The code is cached next to the source, or in the user's cache folder (`NUMBA_CACHE_DIR` names another). Where no
    such folder can be written each process compiles for itself.
    """
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "no locator available"
        return njit(nogil=True, error_model="numpy")(function)
