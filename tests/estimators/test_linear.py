"""Least squares, ridge, averaging and kernel ridge against NumPy, scikit-learn and the Bayes posterior."""

import numpy as np
import pytest
import torch
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.estimators.averaging import Averaging
from iclbench.estimators.base import TaskFacts
from iclbench.estimators.least_squares import RCOND, LeastSquares
from iclbench.estimators.ridge import KernelRidge, KernelRidgeSettings, Ridge, RidgeSettings


def draw(episodes: int, points: int, dim: int, noise: float = 1.0, seed: int = 0) -> Points:
    """Noisy linear functions in float64."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(episodes, points, dim, generator=g, dtype=torch.float64)
    w = torch.randn(episodes, dim, 1, generator=g, dtype=torch.float64)
    return Points.full(x, x @ w + noise * torch.randn(episodes, points, 1, generator=g, dtype=torch.float64))


def each_prefix(points: Points, solve) -> Tensor:  # type: ignore[no-untyped-def]
    """Answers of `solve(x, y, query)`, called for every episode and prefix."""
    answers = torch.zeros_like(points.y)
    for b, (x, y) in enumerate(zip(points.x.numpy(), points.y[..., 0].numpy(), strict=True)):
        for n in range(1, len(x)):
            answers[b, n] = float(solve(x[:n], y[:n], x[n]))
    return answers


def lstsq(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
    return float(query @ np.linalg.lstsq(x, y, rcond=RCOND)[0])


def in_a_random_subspace(points: Points) -> Points:
    """Inputs computed in float32, as the shift does: the other directions hold rounding noise."""
    basis = torch.linalg.qr(torch.randn(len(points), 12, 6, generator=torch.Generator().manual_seed(5))).Q
    return Points.full((points.x[..., :6].float() @ basis.mT).double(), points.y)


DATA = {
    "noiseless": lambda: draw(8, 41, 20, noise=0.0),
    "noisy": lambda: draw(8, 41, 20),
    "long": lambda: draw(2, 200, 7),
    "fewer points than dimensions": lambda: draw(4, 9, 20),
    "one dimension": lambda: draw(4, 9, 1),
    "coordinates at zero": lambda: _with(draw(4, 30, 12), lambda x: x * (torch.arange(12) < 6)),
    "random subspace": lambda: in_a_random_subspace(draw(4, 30, 12)),
    "repeated and zero rows": lambda: _with(draw(4, 30, 12), _repeat_rows),
    "repeated column": lambda: _with(draw(4, 30, 12), lambda x: x[..., [*range(11), 0]]),
    "nearly repeated rows": lambda: _with(
        draw(4, 30, 12), lambda x: torch.cat([x[:, :1] + 1e-5 * x[:, 1:2], x[:, 1:]], 1)
    ),
    "all inputs zero": lambda: _with(draw(2, 6, 3), torch.zeros_like),
    "skewed": lambda: _with(draw(8, 41, 20), lambda x: x / torch.arange(1, 21) ** 2),
}


def _with(points: Points, change) -> Points:  # type: ignore[no-untyped-def]
    return Points.full(change(points.x), points.y)


def _repeat_rows(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 3], x[:, 4] = x[:, 0], 0
    return x


@pytest.mark.parametrize("name", DATA)
def test_least_squares_equals_numpy_at_every_prefix(name: str) -> None:
    points = DATA[name]()
    expected = each_prefix(points, lstsq)
    found = LeastSquares().predict_next(points).mean
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_least_squares_recovers_noiseless_functions() -> None:
    points = draw(64, 41, 20, noise=0.0, seed=3).to(dtype=torch.float32)
    error = (LeastSquares().predict_next(points).mean - points.y)[:, 22:].square().mean() / 20
    assert error < 1e-6


def test_least_squares_answers_in_a_long_context_with_padding() -> None:
    points = draw(3, 120, 5)
    mask = torch.rand(3, 120, generator=torch.Generator().manual_seed(1)) < 0.7
    found = LeastSquares().predict_targets(Points(points.x, points.y, mask), points.x[:, :4]).mean
    for b in range(3):
        w = np.linalg.lstsq(points.x[b][mask[b]].numpy(), points.y[b][mask[b]].numpy(), rcond=None)[0]
        torch.testing.assert_close(found[b], points.x[b, :4] @ torch.from_numpy(w))


@pytest.mark.parametrize("points", [12, 130])
def test_ridge_with_the_noise_variance_is_the_posterior_mean(points: int) -> None:
    """w ~ N(0, I), noise N(0, sigma²): the posterior, one observation at a time (Kalman)."""
    sigma2 = 0.5
    data = draw(2, points, 4, noise=sigma2**0.5)

    def posterior(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        mean, covariance = np.zeros(4), np.eye(4)
        for a, b in zip(x, y, strict=True):
            gain = covariance @ a / (a @ covariance @ a + sigma2)
            mean, covariance = mean + gain * (b - a @ mean), covariance - np.outer(gain, a @ covariance)
        return float(query @ mean)

    found = Ridge(facts=TaskFacts(noise_to_signal=sigma2)).predict_next(data).mean
    torch.testing.assert_close(found, each_prefix(data, posterior), rtol=1e-8, atol=1e-8)


def test_ridge_equals_scikit_learn() -> None:
    from sklearn.linear_model import Ridge as Reference

    data = draw(3, 30, 8)
    expected = each_prefix(
        data, lambda x, y, q: Reference(alpha=0.3, fit_intercept=False).fit(x, y).predict(q[None])[0]
    )
    found = Ridge(RidgeSettings(penalty=0.3)).predict_next(data).mean
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_ridge_without_noise_is_least_squares() -> None:
    data = draw(3, 30, 8)
    torch.testing.assert_close(Ridge().predict_next(data).mean, LeastSquares().predict_next(data).mean)


@pytest.mark.parametrize("lengthscale", ["sqrt-dim", 1.5])
def test_kernel_ridge_is_gaussian_process_regression(lengthscale: str | float) -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    data = draw(2, 15, 4)
    scale = 2.0 if lengthscale == "sqrt-dim" else lengthscale
    kernel = ConstantKernel(3.0) * RBF(scale)

    def reference(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        return float(GaussianProcessRegressor(kernel, alpha=0.2, optimizer=None).fit(x, y).predict(query[None])[0])

    settings = KernelRidgeSettings(lengthscale=lengthscale, variance=3.0, noise=0.2)
    found = KernelRidge(settings).predict_next(data).mean
    torch.testing.assert_close(found, each_prefix(data, reference), rtol=1e-8, atol=1e-8)


def test_averaging_is_the_mean_of_the_products() -> None:
    data = draw(3, 12, 4)
    expected = each_prefix(data, lambda x, y, q: q @ (x * y[:, None]).mean(0))
    torch.testing.assert_close(Averaging().predict_next(data).mean, expected)
