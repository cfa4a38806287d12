"""Measure the time of work, and its peak memory beyond the memory in use at the start."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Measure:
    """Measure a block: `with Measure(device) as cost: ...`, then read `cost.seconds` and `cost.bytes`.

    On CUDA, `bytes` is the peak of torch's allocator. On the CPU under Linux, it is the peak of the resident set as
    reported by the kernel, which includes the memory of all libraries. On other systems, it is None.

    The C library reuses freed pages, which would hide new allocations. Free pages are therefore returned to the kernel
    before the block begins. Partly used pages remain, so values below a few hundred KiB are only lower bounds. After
    other work in the same process, this holds for values below a few tens of MiB. Pages of mapped files, such as code
    that runs for the first time, do not count. The first call of a function also starts thread pools, so measure the
    second call.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds = 0.0
        self.bytes: int | None = None

    def __enter__(self) -> Measure:
        if self.device.startswith("cuda"):
            _wait_for(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._bytes_before: int | None = torch.cuda.memory_allocated(self.device)
        else:
            _return_free_pages()
            self._bytes_before = _reset_resident_peak()
            self._file_bytes_before = 0 if self._bytes_before is None else _resident("RssFile")
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        _wait_for(self.device)
        self.seconds = time.perf_counter() - self._start
        self.bytes = self.peak

    @property
    def peak(self) -> int | None:
        """Peak memory up to now, in bytes; None if it is unknown."""
        if self._bytes_before is None:
            return None
        if self.device.startswith("cuda"):
            return max(0, torch.cuda.max_memory_allocated(self.device) - self._bytes_before)
        file_bytes = max(0, _resident("RssFile") - self._file_bytes_before)
        return max(0, _resident("VmHWM") - self._bytes_before - file_bytes)

    def restart_peak(self) -> None:
        """Reset the peak to the memory that is in use now."""
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            _return_free_pages()
            _reset_resident_peak()


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the time in seconds until the device has finished the work."""
    _wait_for(device)
    start = time.perf_counter()
    work()
    _wait_for(device)
    return time.perf_counter() - start


def peak_of(work: Callable[[], object], device: str) -> int | None:
    """Return the peak memory of the work in bytes; see `Measure`."""
    with Measure(device) as cost:
        work()
    return cost.bytes


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _return_free_pages() -> None:
    """Return the free pages of glibc to the kernel. Do nothing for other C libraries, which have no such function."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_resident_peak() -> int | None:
    """Reset the kernel's peak to the current resident size, and return this size in bytes; None if the kernel cannot
    reset it."""
    try:
        _CLEAR.write_text("5")
        return _resident("VmRSS")
    except (OSError, ValueError):
        return None


def _resident(field: str) -> int:
    """Return a field of this process's status in the kernel, in bytes."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise ValueError(f"{_STATUS} has no {field}")
