"""The peak of a piece of work is seen, also when its memory has been given back at the end."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from iclbench.core import measure
from iclbench.core.measure import Measure, _reset_resident_peak, _resident, peak_of, seconds_of


@pytest.fixture(autouse=True)
def what_others_left_is_gone() -> None:
    """Garbage of other tests, collected within the work, would hide what that needs. Some tens of MiB of the process's
    other memory may go meanwhile all the same: arrays are large beside them."""
    gc.collect()


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_peak_memory_of_a_large_array_that_is_gone_at_the_end() -> None:
    with Measure("cpu") as large:
        np.ones(300_000_000, dtype=np.uint8).sum()
    with Measure("cpu") as nothing:
        pass
    assert large.bytes is not None and nothing.bytes is not None
    assert 250_000_000 < large.bytes < 360_000_000
    assert nothing.bytes < 10_000_000
    assert large.seconds > nothing.seconds > 0


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_a_peak_that_is_forgotten_does_not_count() -> None:
    with Measure("cpu") as cost:
        np.ones(500_000_000, dtype=np.uint8).sum()
        before = cost.peak
        cost.restart_peak()
        np.ones(200_000_000, dtype=np.uint8).sum()
    assert before is not None and cost.bytes is not None
    assert before > 450_000_000
    assert 150_000_000 < cost.bytes < 260_000_000


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_pages_of_files_that_stay_mapped_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(bytes(50_000_000))
    mapped = np.memmap(tmp_path / "code", np.uint8, "r")
    with Measure("cpu") as cost:
        assert mapped.sum() == 0
    assert cost.bytes is not None and cost.bytes < 10_000_000


class Cuda:
    """The allocator's figures of one device, as torch tells them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 100
        self.events: list[str] = []
        monkeypatch.setattr(torch.cuda, "synchronize", self.of("wait", lambda: None))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.of("reset", lambda: self.hold(self.now, 0)))
        monkeypatch.setattr(torch.cuda, "memory_allocated", self.of("now", lambda: self.now))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", self.of("peak", lambda: self.peak))

    def of(self, event, figure):
        def told(device: str):
            assert device == "cuda:1"
            self.events.append(event)
            return figure()

        return told

    def hold(self, peak: int, less: int) -> None:
        self.peak, self.now = peak, peak - less


def test_on_cuda_the_allocator_is_asked_when_all_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    cuda.peak = 500  # of work before
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
    assert peak_of(lambda: cuda.hold(90, 0), "cuda:1") == 0, "what was there before may be freed"


def test_where_the_kernel_tells_no_peak_there_are_seconds_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "_CLEAR", tmp_path / "no" / "such")
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "no" / "such")
    cost = Measure("cpu")
    assert (cost.seconds, cost.bytes) == (0, None)
    with cost:
        sum(range(1000))
    assert cost.bytes is None and cost.peak is None and 0 < cost.seconds < 60


def test_other_c_libraries_keep_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.ctypes, "CDLL", lambda name: object())
    measure._hand_back_free_pages()


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_the_kernels_figures_are_told_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert _resident("VmRSS") == pytest.approx(pages * 4096, rel=0.05)
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    1234 kB\nVmRSS:\t     56 kB\n")
    assert (_resident("VmHWM"), _resident("VmRSS")) == (1234 * 1024, 56 * 1024)
    with pytest.raises(ValueError, match="status has no RssFile"):
        _resident("RssFile")
