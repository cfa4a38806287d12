"""Kernels and their cosine series against scikit-learn, and sampled functions against the kernels."""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels

from iclbench.families.gaussian_processes.kernels import KERNELS, PERIODIC, RBF, cosine_series, covariance, series_terms

SPAN = 8.0
LENGTHSCALES = [0.1, 0.25, 0.7, 1.0, 4.0, 10.0]


def sklearn_covariance(kernel: int, lengthscale: float, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if kernel == RBF:
        return kernels.RBF(lengthscale)(a, b)
    # In the paper, lambda = ln 2 is the square of scikit-learn's length_scale.
    return kernels.ExpSineSquared(length_scale=math.sqrt(math.log(2)), periodicity=lengthscale)(a, b)


@pytest.mark.parametrize("kernel", [RBF, PERIODIC], ids=KERNELS)
@pytest.mark.parametrize("lengthscale", LENGTHSCALES)
def test_kernels_equal_scikit_learn(kernel: int, lengthscale: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-4, 4, (7, 1)), rng.uniform(-4, 4, (5, 1))
    values = covariance(
        torch.tensor([kernel]),
        torch.tensor([lengthscale], dtype=torch.float64),
        torch.tensor(a)[None],
        torch.tensor(b)[None],
    )
    np.testing.assert_allclose(values[0], sklearn_covariance(kernel, lengthscale, a, b), atol=1e-12)


@pytest.mark.parametrize("kernel", [RBF, PERIODIC], ids=KERNELS)
def test_the_series_equals_the_kernel_within_the_span(kernel: int) -> None:
    distance = np.linspace(-SPAN, SPAN, 801)
    for lengthscale in LENGTHSCALES:
        term_count = series_terms(kernel, lengthscale, SPAN)
        series = cosine_series(kernel, torch.tensor([lengthscale], dtype=torch.float64), SPAN, term_count)
        expected = sklearn_covariance(kernel, lengthscale, distance[:, None], np.zeros((1, 1)))[:, 0]
        np.testing.assert_allclose(series.covariance(torch.tensor(distance))[0], expected, atol=1e-9)


def test_sampled_functions_have_the_covariance_of_the_kernel() -> None:
    draws = 20_000
    x = torch.tensor([-4.0, -1.3, -1.1, 0.4, 4.0], dtype=torch.float64)
    for kernel, lengthscale in ((RBF, 0.8), (PERIODIC, 1.7)):
        term_count = series_terms(kernel, 0.25, SPAN)
        series = cosine_series(kernel, torch.full((draws,), lengthscale, dtype=torch.float64), SPAN, term_count)
        normals = torch.randn(
            (draws, term_count + 1, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        y = series.functions(normals, x.expand(draws, -1)).numpy()
        expected = sklearn_covariance(kernel, lengthscale, x.numpy()[:, None], x.numpy()[:, None])
        # The product of two standard normal variables with correlation k has variance 1 + k².
        # The tolerance is five standard errors.
        error = np.sqrt((1 + expected**2) / draws)
        assert (np.abs(y.T @ y / draws - expected) < 5 * error).all()
