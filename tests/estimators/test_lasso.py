"""The Lasso path: KKT conditions, agreement with scikit-learn, and sharing between baselines."""

import logging

import numpy as np
import pytest
import torch
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.estimators import lasso
from iclbench.estimators.lasso import ALPHAS, Lasso, LassoSettings, lasso_path


def draw(kind: str, episodes: int = 16, points: int = 41, dim: int = 20) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(episodes, points, dim, generator=g, dtype=torch.float64)
    w = torch.randn(episodes, dim, 1, generator=g, dtype=torch.float64)
    if kind == "sparse":
        w[:, 3:] = 0
    if kind == "subspace":
        x[..., dim // 2 :] = 0
    if kind == "ties":
        # With few distinct values and equal columns, several weights enter or leave the path at the same alpha.
        x = x.round()
        x[..., 4] = x[..., 3]
    if kind == "skewed":
        x = x / torch.arange(1, dim + 1) ** 2
    y = (x @ w).squeeze(2)
    if kind == "noisy":
        y = y + torch.randn(y.shape, generator=g, dtype=torch.float64)
    return x, y


def kkt_violation(x: np.ndarray, y: np.ndarray, w: np.ndarray, alpha: float) -> float:
    """Return the largest violation of the KKT conditions."""
    correlation = x.T @ (y - x @ w) / len(x)
    is_active = w != 0
    active_violation = np.abs(correlation - alpha * np.sign(w))[is_active].max(initial=0.0)
    return max(active_violation, (np.abs(correlation) - alpha)[~is_active].max(initial=0.0))


@pytest.mark.parametrize("kind", ["sparse", "noisy", "subspace", "ties", "skewed"])
def test_all_solutions_on_the_path_are_optimal(kind: str) -> None:
    x, y = draw(kind)
    w, failed = lasso_path(x, y, list(ALPHAS))
    assert failed == 0
    worst = max(
        kkt_violation(x[b, :n].numpy(), y[b, :n].numpy(), w[b, n - 1, k].numpy(), alpha)
        for b in range(len(x))
        for n in range(1, x.shape[1] + 1)
        for k, alpha in enumerate(ALPHAS)
    )
    assert worst <= 1e-8


def test_solutions_agree_with_scikit_learn() -> None:
    from sklearn.linear_model import Lasso as Reference

    x, y = draw("noisy", episodes=1, points=30, dim=8)
    w, _ = lasso_path(x, y, [0.03, 0.3])
    for n in (1, 3, 8, 20, 30):
        for k, alpha in enumerate((0.03, 0.3)):
            model = Reference(alpha=alpha, fit_intercept=False, tol=1e-10, max_iter=10**6)
            coefficients = model.fit(x[0, :n].numpy(), y[0, :n].numpy()).coef_
            np.testing.assert_allclose(w[0, n - 1, k].numpy(), coefficients, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1e6, 1e9])
def test_solutions_scale_with_the_outputs(scale: float) -> None:
    """If y and alpha are scaled by the same factor, so is the solution."""
    x, y = draw("noisy", episodes=4, points=25)
    plain, _ = lasso_path(x, y, [0.1])
    scaled, failed = lasso_path(x, scale * y, [0.1 * scale])
    assert failed == 0
    torch.testing.assert_close(scaled / scale, plain, rtol=1e-6, atol=1e-9)


def test_a_penalty_above_all_correlations_gives_zero_weights() -> None:
    x, y = draw("noisy", episodes=2, points=10)
    assert not lasso_path(x, y, [1e3])[0].any()
    assert not lasso_path(x, 0 * y, [1e-3])[0].any()


def test_solutions_that_violate_the_kkt_conditions_are_recomputed_by_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = draw("noisy", episodes=1, points=6, dim=3)
    expected, _ = lasso_path(x, y, [0.01])
    exact = lasso.homotopy

    def wrong_homotopy(gram: Tensor, moment: Tensor, alphas: Tensor) -> Tensor:
        w = exact(gram, moment, alphas)
        w[-1] += 1.0
        return w

    monkeypatch.setattr(lasso, "homotopy", wrong_homotopy)
    with caplog.at_level(logging.WARNING, "iclbench"):
        w, failed = lasso_path(x, y, [0.01])
    assert failed == 1
    assert "lasso" in caplog.text and "1 of 6" in caplog.text
    torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)


def test_coordinate_descent_solves_contexts_of_one_point_and_of_no_points() -> None:
    """For one point, the minimiser of |y - wx|²/2 + alpha |w|_1 is nonzero only at the largest input."""
    x, y = torch.tensor([[0.5, -2.0, 1.0]], dtype=torch.float64), torch.tensor([3.0], dtype=torch.float64)
    actual = lasso._coordinate_descent(x, y, 0.1)
    expected = torch.tensor([0.0, -(2 * 3 - 0.1) / 2**2, 0.0], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert lasso._coordinate_descent(x[:0], y[:0], 0.1).tolist() == [0.0, 0.0, 0.0]


def test_a_solution_for_one_point_that_violates_the_kkt_conditions_is_recomputed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = draw("noisy", episodes=1, points=1, dim=3)
    expected, _ = lasso_path(x, y, [0.01])
    assert expected.any()
    exact = lasso.homotopy
    monkeypatch.setattr(lasso, "homotopy", lambda *a: exact(*a) + 1)
    w, failed = lasso_path(x, y, [0.01])
    assert failed == 1
    torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)


def test_five_baselines_share_one_path(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = draw("sparse", episodes=3, points=12, dim=5)
    points = Points.full(x, y.unsqueeze(2))
    calls = []
    path = lasso.lasso_path
    monkeypatch.setattr(lasso, "lasso_path", lambda *args: calls.append(args) or path(*args))
    predictions = [Lasso(LassoSettings(alpha=alpha)).predict_next(points).mean for alpha in ALPHAS]
    assert len(calls) == 1
    w, _ = path(x, y, list(ALPHAS))
    for k, prediction in enumerate(predictions):
        expected = (w[:, :-1, k] * x[:, 1:]).sum(-1)
        torch.testing.assert_close(prediction[:, 1:, 0], expected)
    Lasso(LassoSettings(alpha=0.1)).predict_next(Points.full(x, 1 + y.unsqueeze(2)))
    assert len(calls) == 2
