"""A guard for public functions: they run with a fixed global state of torch that does not depend on the caller.

A notebook may have changed torch's default dtype, default device, autocast or gradient mode. Without the guard, such
changes would change prompts and weights that are stored under the same names.

All threads of a process share the default dtype and the global random generator. Each thread has its own default
device, autocast mode and gradient mode.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar, no_type_check

import torch

P = ParamSpec("P")
R = TypeVar("R")

_DEVICES = ("cpu", "cuda", "mps")


class _Process:
    """Bookkeeping for the global state of torch that all threads share."""

    def __init__(self) -> None:
        self.exclusive = threading.RLock()
        self.dtype_lock = threading.Lock()
        self.guards = 0
        self.dtype = torch.float32


_process = _Process()


def _reset_after_fork() -> None:
    """Replace the locks in a forked child process, in which the threads that hold them do not exist."""
    global _process
    _process = _Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def exclusive() -> Iterator[None]:
    """Run the block in one thread at a time, for code that seeds torch's global generator or registers global module
    hooks."""
    with _process.exclusive:
        yield


@contextmanager
def fixed_state() -> Iterator[None]:
    """Within the block, the default dtype is float32, the default device is the CPU, autocast is off and gradients are
    on.

    >>> torch.set_default_dtype(torch.float64)
    >>> with fixed_state():
    ...     torch.zeros(1).dtype
    torch.float32
    >>> torch.zeros(1).dtype
    torch.float64
    >>> torch.set_default_dtype(torch.float32)
    """
    with ExitStack() as stack:
        stack.enter_context(_float32())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


@contextmanager
def _float32() -> Iterator[None]:
    """Set the default dtype to float32 within the block.

    If blocks overlap in several threads, the first one to begin stores the caller's dtype, and the last one to end
    restores it.
    """
    process = _process
    with process.dtype_lock:
        if process.guards == 0:
            process.dtype = torch.get_default_dtype()
        process.guards += 1
        _set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with process.dtype_lock:
            process.guards -= 1
            _set_default_dtype(torch.float32 if process.guards else process.dtype)


def _set_default_dtype(dtype: torch.dtype) -> None:
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to run it in `fixed_state`."""

    @wraps(function)
    @no_type_check  # checks of shapes would add frames between a warning and the call to which it points
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with fixed_state():
            return function(*args, **kwargs)

    call.is_guarded = True
    return call
