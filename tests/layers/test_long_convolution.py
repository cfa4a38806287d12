"""Causal convolution and channels-first normalisation against SciPy and PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import convolve
from torch import Tensor

from iclbench.layers.channels_first import ChannelNorm
from iclbench.layers.long_convolution import convolve_by_fft, convolve_by_toeplitz, long_convolution


def random_inputs(channels: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(channels, batch, length, generator=generator, dtype=torch.float64)
    return u, torch.randn(channels, length, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("length", [1, 2, 41, 82])
def test_both_algorithms_equal_scipys_convolution(length: int) -> None:
    u, kernel = random_inputs(3, 2, length)
    expected = np.stack([[convolve(row, k)[:length] for row in rows] for rows, k in zip(u, kernel, strict=True)])
    for algorithm in (convolve_by_toeplitz, convolve_by_fft):
        torch.testing.assert_close(algorithm(u, kernel), torch.from_numpy(expected), atol=1e-12, rtol=1e-10)


def test_long_sequences_use_the_fft() -> None:
    """A Toeplitz matrix grows with the square of the sequence length."""
    short, long = random_inputs(1, 1, 400), random_inputs(1, 1, 401)
    assert torch.equal(long_convolution(*short), convolve_by_toeplitz(*short))
    assert torch.equal(long_convolution(*long), convolve_by_fft(*long))


def test_first_and_second_derivatives_of_the_toeplitz_algorithm_are_correct() -> None:
    inputs = [t.requires_grad_() for t in random_inputs(2, 3, 5)]
    assert torch.autograd.gradcheck(convolve_by_toeplitz, inputs)
    assert torch.autograd.gradgradcheck(convolve_by_toeplitz, inputs)


def test_channel_norm_is_layer_norm_over_axis_0() -> None:
    """Values and gradients are equal."""
    norm, (x, _) = ChannelNorm(7).double(), random_inputs(7, 1, 11)
    x = (3 * x[:, 0] + 1).requires_grad_()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 7))
        norm.bias.copy_(torch.linspace(-1, 1, 7))
    leaves = (x, norm.weight, norm.bias)
    grad_output = torch.randn(7, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    actual, expected = norm(x), F.layer_norm(x.mT, (7,), norm.weight, norm.bias).mT
    torch.testing.assert_close(actual, expected)
    for ours, theirs in zip(*(torch.autograd.grad(y, leaves, grad_output) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_channel_norm_refuses_a_second_derivative() -> None:
    """A second derivative would silently ignore how the mean and the scale depend on the input."""
    norm, x = ChannelNorm(4), torch.randn(4, 5, requires_grad=True)
    (slope,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
