"""Ridge regression of a probe, compared with scikit-learn and the definition of generalised cross-validation."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import Ridge

from iclbench.probing.ridge import PENALTIES, fit_ridge

EXACT = {"rtol": 1e-8, "atol": 1e-8}


def problem(points: int = 40, dim: int = 6, outputs: int = 2) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(points, dim)) * np.logspace(0, -2, dim) + 3
    return x, x @ draw.normal(size=(dim, outputs)) + draw.normal(size=(points, outputs)) + 5


def error_of(x: np.ndarray, y: np.ndarray, penalty: float) -> float:
    """Return the generalised cross-validation error, computed with the explicit hat matrix."""
    points = len(x)
    centring = np.eye(points) - 1 / points
    z = centring @ x
    hat = z @ np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T) @ centring + 1 / points
    return float(((y - hat @ y) ** 2).sum() / np.trace(np.eye(points) - hat) ** 2)


def test_the_penalty_minimises_generalised_cross_validation_and_the_map_is_ridge_regression() -> None:
    x, y = problem()
    squares = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    penalties = PENALTIES.numpy() * squares.mean()
    best = penalties[np.argmin([error_of(x, y, penalty) for penalty in penalties])]
    assert penalties[0] < best < penalties[-1]
    linear_map = fit_ridge(torch.from_numpy(x), torch.from_numpy(y))
    reference = Ridge(alpha=float(best)).fit(x, y)
    new_x = problem(points=7)[0][::-1].copy()
    torch.testing.assert_close(linear_map(torch.from_numpy(new_x)), torch.from_numpy(reference.predict(new_x)), **EXACT)


def test_the_map_is_exact_without_noise_and_nearly_constant_without_signal() -> None:
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).double()
    weights = torch.arange(10.0, dtype=torch.float64).view(5, 2)
    torch.testing.assert_close(fit_ridge(x, x @ weights + 1)(x), x @ weights + 1, rtol=0, atol=1e-6)
    noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(1)).double()
    assert float((fit_ridge(x, noise)(x) - noise.mean()).abs().max()) < 0.5


def test_constant_inputs_give_the_mean_of_the_outputs() -> None:
    y = torch.tensor([[1.0], [2.0], [6.0]])
    assert torch.equal(fit_ridge(torch.ones(3, 4), y)(torch.zeros(2, 4)), torch.full((2, 1), 3.0).double())
