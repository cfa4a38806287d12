"""The time encoding against its formula in NumPy."""

import numpy as np
import pytest
import torch

from iclbench.layers.time_encoding import time_encoding

TIMES = np.array([[0.0, 0.25, 3.7], [40.0, 1e3, 2.5e4]])


@pytest.mark.parametrize("width", [1, 7, 64])
def test_encoding_equals_the_formula(width: int) -> None:
    """Zuo et al. 2020, equation 2: z_j(t) = sin(t / 10000^(j/D)) for even j, and cos(t / 10000^((j-1)/D)) for odd j."""
    expected = np.empty((*TIMES.shape, width))
    for j in range(width):
        angle = TIMES / 10_000 ** ((j - j % 2) / width)
        expected[..., j] = np.cos(angle) if j % 2 else np.sin(angle)
    np.testing.assert_allclose(time_encoding(torch.tensor(TIMES), width), expected, rtol=0, atol=1e-10)


def test_float32_agrees_with_float64_at_short_times() -> None:
    actual = time_encoding(torch.tensor(TIMES, dtype=torch.float32), 64)
    assert actual.dtype == torch.float32
    expected = time_encoding(torch.tensor(TIMES), 64)
    torch.testing.assert_close(actual[0].double(), expected[0], rtol=0, atol=1e-6)
