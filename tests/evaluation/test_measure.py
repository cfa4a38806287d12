"""The peak of a piece of work is seen, also when its memory has been given back at the end."""

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
