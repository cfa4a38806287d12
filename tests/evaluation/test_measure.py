"""The peak of a piece of work is seen, also when its memory has been given back at the end."""

from pathlib import Path

import numpy as np
import pytest

from iclbench.evaluation.measure import Measure, _reset_resident_peak


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_peak_memory_of_a_large_array_that_is_gone_at_the_end() -> None:
    with Measure("cpu") as large:
        np.ones(60_000_000, dtype=np.uint8).sum()
    with Measure("cpu") as nothing:
        pass
    assert large.bytes is not None and nothing.bytes is not None
    assert 50_000_000 < large.bytes < 120_000_000
    assert nothing.bytes < 10_000_000
    assert large.seconds > nothing.seconds > 0


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_a_peak_that_is_forgotten_does_not_count() -> None:
    with Measure("cpu") as cost:
        np.ones(100_000_000, dtype=np.uint8).sum()
        before = cost.peak
        cost.restart_peak()
        np.ones(30_000_000, dtype=np.uint8).sum()
    assert before is not None and cost.bytes is not None
    assert before > 90_000_000
    assert 25_000_000 < cost.bytes < 60_000_000


@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel tells no peak here")
def test_pages_of_files_that_stay_mapped_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(bytes(50_000_000))
    mapped = np.memmap(tmp_path / "code", np.uint8, "r")
    with Measure("cpu") as cost:
        assert mapped.sum() == 0
    assert cost.bytes is not None and cost.bytes < 10_000_000
