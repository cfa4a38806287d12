"""Measured peaks of memory, including memory that is freed before the end."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from iclbench.core import measure
from iclbench.core.measure import Measure, _reset_resident_peak, _resident, peak_of, seconds_of


@pytest.fixture(autouse=True)
def collect_garbage() -> None:
    """Garbage of other tests would lower the peak if it were freed during a measurement. Tens of MiB may still be
    freed, so the arrays of these tests are much larger."""
    gc.collect()


@pytest.mark.slow
@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel reports no peak")
def test_memory_that_is_freed_before_the_end_counts_towards_the_peak() -> None:
    with Measure("cpu") as large:
        np.ones(300_000_000, dtype=np.uint8).sum()
    with Measure("cpu") as nothing:
        pass
    assert large.bytes is not None and nothing.bytes is not None
    assert 250_000_000 < large.bytes < 360_000_000
    assert nothing.bytes < 10_000_000
    assert large.seconds > nothing.seconds > 0


@pytest.mark.slow
@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel reports no peak")
def test_a_peak_before_a_restart_does_not_count() -> None:
    with Measure("cpu") as cost:
        np.ones(500_000_000, dtype=np.uint8).sum()
        first_peak = cost.peak
        cost.restart_peak()
        np.ones(200_000_000, dtype=np.uint8).sum()
    assert first_peak is not None and cost.bytes is not None
    assert first_peak > 450_000_000
    assert 150_000_000 < cost.bytes < 260_000_000


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel reports no peak")
def test_pages_of_memory_mapped_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(bytes(50_000_000))
    mapped = np.memmap(tmp_path / "code", np.uint8, "r")
    with Measure("cpu") as cost:
        assert mapped.sum() == 0
    assert cost.bytes is not None and cost.bytes < 10_000_000


class Cuda:
    """Replaces the functions of `torch.cuda` that report the memory of a device, and records their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = 100
        self.events: list[str] = []
        monkeypatch.setattr(torch.cuda, "synchronize", self.record_calls("wait", lambda: None))
        monkeypatch.setattr(
            torch.cuda, "reset_peak_memory_stats", self.record_calls("reset", lambda: self.hold(self.allocated, 0))
        )
        monkeypatch.setattr(torch.cuda, "memory_allocated", self.record_calls("now", lambda: self.allocated))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", self.record_calls("peak", lambda: self.peak))

    def record_calls(self, event, value):
        def call(device: str):
            assert device == "cuda:1"
            self.events.append(event)
            return value()

        return call

    def hold(self, peak: int, decrease: int) -> None:
        self.peak, self.allocated = peak, peak - decrease


def test_on_cuda_the_peak_is_read_from_the_allocator_after_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    cuda.peak = 500  # the peak of earlier work
    with Measure("cuda:1") as cost:
        assert cuda.events == ["wait", "reset", "now"]
        cuda.hold(160, 30)
        assert cost.peak == 60
        cost.restart_peak()
        assert cuda.events[-1] == "reset"
        cuda.hold(140, 40)
        cuda.events.clear()
    assert cuda.events == ["wait", "peak"] and cost.bytes == 40
    cuda.events.clear()
    assert 0 < seconds_of(lambda: cuda.events.append("work"), "cuda:1") < 60
    assert cuda.events == ["wait", "work", "wait"]
    cuda.hold(100, 0)
    assert peak_of(lambda: cuda.hold(130, 0), "cuda:1") == 30
    assert peak_of(lambda: cuda.hold(90, 0), "cuda:1") == 0, "freeing earlier memory does not make the peak negative"


def test_only_seconds_are_measured_if_the_kernel_reports_no_peak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "_CLEAR", tmp_path / "no" / "such")
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "no" / "such")
    cost = Measure("cpu")
    assert (cost.seconds, cost.bytes) == (0, None)
    with cost:
        sum(range(1000))
    assert cost.bytes is None and cost.peak is None and 0 < cost.seconds < 60


def test_c_libraries_without_malloc_trim_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.ctypes, "CDLL", lambda name: object())
    measure._return_free_pages()


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel reports no peak")
def test_fields_of_the_process_status_are_converted_to_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert _resident("VmRSS") == pytest.approx(pages * 4096, rel=0.05)
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    1234 kB\nVmRSS:\t     56 kB\n")
    assert (_resident("VmHWM"), _resident("VmRSS")) == (1234 * 1024, 56 * 1024)
    with pytest.raises(ValueError, match="RssFile"):
        _resident("RssFile")
