"""What a piece of work costs: seconds, and the memory that it needed at its peak beyond what was there before."""

from __future__ import annotations

import time
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Measure:
    """`with Measure(device) as cost: ...`, then `cost.seconds` and `cost.bytes`.

    On CUDA the allocator is asked. On Linux the peak of the resident set is reset and read from the kernel; allocators
    keep pages for later, so take it as an order of magnitude. Elsewhere `bytes` is None.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds = 0.0
        self.bytes: int | None = None

    def __enter__(self) -> Measure:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before: int | None = torch.cuda.memory_allocated(self.device)
        else:
            self._before = _reset_resident_peak()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        self.seconds = time.perf_counter() - self._started
        if self._before is not None:
            cuda = self.device.startswith("cuda")
            peak = torch.cuda.max_memory_allocated(self.device) if cuda else _resident("VmHWM")
            self.bytes = max(0, peak - self._before)


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
        name, _, rest = line.partition(":")
        if name == field:
            return 1024 * int(rest.split()[0])
    raise ValueError(f"{_STATUS} has no {field}")
