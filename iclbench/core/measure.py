"""The cost of a piece of work: seconds, and its peak memory beyond what was in use before."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Measure:
    """`with Measure(device) as cost: ...`, then `cost.seconds` and `cost.bytes`.

    On CUDA the allocator is asked. On Linux the peak of the resident set is reset and read from the kernel, which sees
    the memory of every library. The C library keeps freed pages for later, where new work would find them unseen;
    they are handed back before the work begins. What is left of that are parts of pages: below some hundred KiB the
    figure is a bound from below, and 0 says no more than that; in a process that has done much else before, below some
    tens of MiB. Pages of files that stay mapped, such as those of code that runs for the first time, are left out. The
    first call of anything also pays for its thread pools: measure the second. Elsewhere `bytes` is None.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds = 0.0
        self.bytes: int | None = None

    def __enter__(self) -> Measure:
        if self.device.startswith("cuda"):
            _wait_for(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before: int | None = torch.cuda.memory_allocated(self.device)
        else:
            _hand_back_free_pages()
            self._before = _reset_resident_peak()
            self._files = 0 if self._before is None else _resident("RssFile")
        self._started = time.perf_counter()
        return self

    def __exit__(self, *raised: object) -> None:
        _wait_for(self.device)
        self.seconds = time.perf_counter() - self._started
        self.bytes = self.peak

    @property
    def peak(self) -> int | None:
        """Bytes needed at the peak so far."""
        if self._before is None:
            return None
        if self.device.startswith("cuda"):
            return max(0, torch.cuda.max_memory_allocated(self.device) - self._before)
        return max(0, _resident("VmHWM") - self._before - max(0, _resident("RssFile") - self._files))

    def restart_peak(self) -> None:
        """Forget the peak so far, to go on from what is held now."""
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            _hand_back_free_pages()
            _reset_resident_peak()


def seconds_of(work: Callable[[], object], device: str) -> float:
    """How long the work takes, all of it done on the device."""
    _wait_for(device)
    started = time.perf_counter()
    work()
    _wait_for(device)
    return time.perf_counter() - started


def peak_of(work: Callable[[], object], device: str) -> int | None:
    """Bytes that the work needs at its peak, see `Measure`."""
    with Measure(device) as cost:
        work()
    return cost.bytes


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _hand_back_free_pages() -> None:
    """What glibc holds of freed memory goes back to the kernel; other C libraries are left as they are."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_resident_peak() -> int | None:
    """Set the kernel's peak to the present resident size and return that; None where there is no such thing."""
    try:
        _CLEAR.write_text("5")
        return _resident("VmRSS")
    except (OSError, ValueError):
        return None


def _resident(field: str) -> int:
    """One of the kernel's figures about this process, in bytes."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise ValueError(f"{_STATUS} has no {field}")
