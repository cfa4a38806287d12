"""Least squares, ridge, sparse regression and averaging, compared with NumPy, scikit-learn and exact posteriors."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Points
from iclbench.estimators.averaging import Averaging
from iclbench.estimators.base import TaskFacts
from iclbench.estimators.least_squares import RCOND, LeastSquares
from iclbench.estimators.ridge import FeatureRidge, KernelRidge, KernelRidgeSettings, Ridge, RidgeSettings
from iclbench.estimators.spike_and_slab import SpikeAndSlab
from iclbench.families.combination import Combination
from iclbench.families.linear import SparseLinear
from iclbench.families.relu_network import ReluNetwork
from iclbench.families.request import Request
from tests.refusals import refused


def draw(episodes: int, points: int, dim: int, noise: float = 1.0, seed: int = 0) -> Points:
    """Sample noisy linear functions in float64."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(episodes, points, dim, generator=g, dtype=torch.float64)
    w = torch.randn(episodes, dim, 1, generator=g, dtype=torch.float64)
    return Points.full(x, x @ w + noise * torch.randn(episodes, points, 1, generator=g, dtype=torch.float64))


def predict_each_prefix(points: Points, solve) -> Tensor:  # type: ignore[no-untyped-def]
    """Return the predictions of `solve(x, y, query)` for each episode and prefix."""
    answers = torch.zeros_like(points.y)
    for b, (x, y) in enumerate(zip(points.x.numpy(), points.y[..., 0].numpy(), strict=True)):
        for n in range(1, len(x)):
            answers[b, n] = float(solve(x[:n], y[:n], x[n]))
    return answers


def lstsq(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
    return float(query @ np.linalg.lstsq(x, y, rcond=RCOND)[0])


def project_to_random_subspace(points: Points) -> Points:
    """Project the inputs onto a random subspace. As in the shift `subspace-random`, the inputs are computed in
    float32, so rounding errors lie outside the subspace."""
    basis = torch.linalg.qr(torch.randn(len(points), 12, 6, generator=torch.Generator().manual_seed(5))).Q
    return Points.full((points.x[..., :6].float() @ basis.mT).double(), points.y)


DATA = {
    "noiseless": lambda: draw(8, 41, 20, noise=0.0),
    "noisy": lambda: draw(8, 41, 20),
    "long": lambda: draw(2, 200, 7),
    "fewer points than dimensions": lambda: draw(4, 9, 20),
    "one dimension": lambda: draw(4, 9, 1),
    "coordinates at zero": lambda: _with_inputs(draw(4, 30, 12), lambda x: x * (torch.arange(12) < 6)),
    "random subspace": lambda: project_to_random_subspace(draw(4, 30, 12)),
    "repeated and zero rows": lambda: _with_inputs(draw(4, 30, 12), _repeat_rows),
    "repeated column": lambda: _with_inputs(draw(4, 30, 12), lambda x: x[..., [*range(11), 0]]),
    "nearly repeated rows": lambda: _with_inputs(
        draw(4, 30, 12), lambda x: torch.cat([x[:, :1] + 1e-5 * x[:, 1:2], x[:, 1:]], 1)
    ),
    "first input of the size of rounding errors": lambda: _with_inputs(
        draw(4, 30, 5), lambda x: torch.cat([4.8e-16 * x[:, :1], x[:, 1:]], 1)
    ),
    "one dimension, first input far smaller than the others": lambda: _with_inputs(
        draw(4, 30, 1), lambda x: torch.cat([1e-7 * x[:, :1].sign(), x[:, 1:]], 1)
    ),
    "large repeated rows": lambda: _with_inputs(draw(8, 4, 4), lambda x: 1e13 * x[:, [0, 0, 1, 0]]),
    "all inputs zero": lambda: _with_inputs(draw(2, 6, 3), torch.zeros_like),
    "skewed": lambda: _with_inputs(draw(8, 41, 20), lambda x: x / torch.arange(1, 21) ** 2),
}


def _with_inputs(points: Points, change) -> Points:  # type: ignore[no-untyped-def]
    return Points.full(change(points.x), points.y)


def _repeat_rows(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 3], x[:, 4] = x[:, 0], 0
    return x


@pytest.mark.parametrize("name", DATA)
def test_least_squares_equals_numpy_at_every_prefix(name: str) -> None:
    points = DATA[name]()
    expected = predict_each_prefix(points, lstsq)
    prediction = LeastSquares().predict_next(points).mean
    torch.testing.assert_close(prediction, expected, rtol=1e-6, atol=1e-6)


def test_least_squares_recovers_noiseless_functions() -> None:
    points = draw(64, 41, 20, noise=0.0, seed=3).to(dtype=torch.float32)
    error = (LeastSquares().predict_next(points).mean - points.y)[:, 22:].square().mean() / 20
    assert error < 1e-6


def test_least_squares_equals_numpy_for_a_long_context_with_masked_points() -> None:
    points = draw(3, 120, 5)
    mask = torch.rand(3, 120, generator=torch.Generator().manual_seed(1)) < 0.7
    prediction = LeastSquares().predict_targets(Points(points.x, points.y, mask), points.x[:, :4]).mean
    for b in range(3):
        w = np.linalg.lstsq(points.x[b][mask[b]].numpy(), points.y[b][mask[b]].numpy(), rcond=None)[0]
        torch.testing.assert_close(prediction[b], points.x[b, :4] @ torch.from_numpy(w))


@pytest.mark.parametrize("points", [12, 130])
def test_ridge_with_the_noise_variance_as_penalty_is_the_posterior_mean(points: int) -> None:
    """A Kalman filter updates the posterior for w ~ N(0, I) and noise N(0, sigma²) with one observation at a
    time.
    """
    sigma2 = 0.5
    data = draw(2, points, 4, noise=sigma2**0.5)

    def posterior(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        mean, covariance = np.zeros(4), np.eye(4)
        for a, b in zip(x, y, strict=True):
            gain = covariance @ a / (a @ covariance @ a + sigma2)
            mean, covariance = mean + gain * (b - a @ mean), covariance - np.outer(gain, a @ covariance)
        return float(query @ mean)

    prediction = Ridge(facts=TaskFacts(noise_to_signal=sigma2)).predict_next(data).mean
    torch.testing.assert_close(prediction, predict_each_prefix(data, posterior), rtol=1e-8, atol=1e-8)


def test_ridge_equals_scikit_learn() -> None:
    from sklearn.linear_model import Ridge as Reference

    data = draw(3, 30, 8)
    expected = predict_each_prefix(
        data, lambda x, y, q: Reference(alpha=0.3, fit_intercept=False).fit(x, y).predict(q[None])[0]
    )
    prediction = Ridge(RidgeSettings(penalty=0.3)).predict_next(data).mean
    torch.testing.assert_close(prediction, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("penalty", [1e-10, 1e-14, 1e-18])
def test_ridge_with_a_tiny_penalty_equals_augmented_least_squares(penalty: float) -> None:
    data = draw(3, 30, 5)
    rows = math.sqrt(penalty) * np.eye(5)

    def augmented_least_squares(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        return float(query @ np.linalg.lstsq(np.vstack([rows, x]), np.concatenate([np.zeros(5), y]), rcond=1e-12)[0])

    prediction = Ridge(RidgeSettings(penalty=penalty)).predict_next(data).mean
    torch.testing.assert_close(prediction, predict_each_prefix(data, augmented_least_squares), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_ridge_is_accurate_for_inputs_of_different_scales(scale: float, penalty: float) -> None:
    data = draw(3, 30, 3)
    scales = torch.tensor([scale, 1.0, 1.0], dtype=torch.float64)

    def exact(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        rows = np.vstack([math.sqrt(penalty) * np.eye(3), x])
        norms = np.linalg.norm(rows, axis=0)
        q, r = np.linalg.qr(rows / norms)
        return float(query @ (np.linalg.solve(r, q.T @ np.concatenate([np.zeros(3), y])) / norms))

    prediction = Ridge(RidgeSettings(penalty=penalty)).predict_next(_with_inputs(data, lambda x: scales * x)).mean
    expected = predict_each_prefix(_with_inputs(data, lambda x: scales * x), exact)
    torch.testing.assert_close(prediction, expected, rtol=1e-5, atol=1e-5)


def test_nan_outputs_affect_only_their_episode() -> None:
    data = draw(2, 9, 3)
    y = data.y.clone()
    y[0, 4] = math.nan
    prediction = LeastSquares().predict_next(Points.full(data.x, y)).mean
    assert torch.equal(prediction[1], LeastSquares().predict_next(data).mean[1]) and prediction[0, 7].isnan().all()


def test_ridge_without_noise_is_least_squares() -> None:
    data = draw(3, 30, 8)
    torch.testing.assert_close(Ridge().predict_next(data).mean, LeastSquares().predict_next(data).mean)


def test_feature_ridge_equals_scikit_learn() -> None:
    """The reference uses the features of the family `combination`."""
    from sklearn.linear_model import Ridge as Reference

    def features(x: np.ndarray) -> np.ndarray:
        a, b, c, d, e = x[:, :5].T
        return np.stack([abs(a), b**2, c**3, np.cos(np.pi * d), np.exp(0.2 * e)], 1)

    data = draw(3, 30, 7)
    facts = TaskFacts(noise_to_signal=0.3, family=Combination(Combination.Parameters(dim=7)))
    expected = predict_each_prefix(
        data,
        lambda x, y, q: Reference(alpha=0.3, fit_intercept=False).fit(features(x), y).predict(features(q[None]))[0],
    )
    torch.testing.assert_close(FeatureRidge(facts=facts).predict_next(data).mean, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("task", ["quadratic", "combination", "relu-network-shared"])
def test_sampled_feature_weights_have_the_variance_that_the_penalty_assumes(task: str) -> None:
    """E y² equals the variance of the weights times the squared norm of the features, within four standard errors."""
    family = resolve_task(task, "smoke")[0].build()
    points = family.sample(Request(20_000, 1, torch.Generator().manual_seed(0))).context
    features = family.features(points.x[:, 0]).double()
    excess = points.y[:, 0, 0].double().square() - family.weight_variance * features.square().sum(1)
    assert float(excess.mean()) == pytest.approx(0, abs=4 * float(excess.std()) / 20_000**0.5)
    assert family.noise_to_signal("noisy-0.5+weight-scale-2") == pytest.approx(0.0625 / family.weight_variance)


def test_feature_ridge_needs_a_family_with_features() -> None:
    for family in (None, ReluNetwork(ReluNetwork.Parameters())):
        with refused("not-applicable", "FeatureRidge", "combination", "quadratic"):
            FeatureRidge(facts=TaskFacts(family=family))


def sample_sparse(noise: float, dim: int = 5, sparsity: int = 2) -> tuple[SparseLinear, Points]:
    family = SparseLinear(SparseLinear.Parameters(dim=dim, sparsity=sparsity))
    shift = f"noisy-{noise}" if noise else "none"
    return family, family.sample(Request(40, 9, torch.Generator().manual_seed(2), shift=shift)).context


@pytest.mark.slow
def test_sparse_predictions_average_over_supports_weighted_by_their_likelihood() -> None:
    """For each support, the reference computes the density of the outputs and the posterior mean in closed
    form.
    """
    from scipy.stats import multivariate_normal

    sigma = 0.7
    family, data = sample_sparse(sigma)
    data = data.to(dtype=torch.float64)

    def average(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        densities, answers = [], []
        for support in combinations(range(5), 2):
            inputs = x[:, support]
            covariance = inputs @ inputs.T + sigma**2 * np.eye(len(x))
            densities.append(multivariate_normal(np.zeros(len(x)), covariance).pdf(y))
            answers.append(query[list(support)] @ inputs.T @ np.linalg.solve(covariance, y))
        return float(np.average(answers, weights=densities))

    prediction = SpikeAndSlab(facts=TaskFacts(family=family, shift=f"noisy-{sigma}")).predict_next(data).mean
    torch.testing.assert_close(prediction, predict_each_prefix(data, average), rtol=1e-8, atol=1e-8)


def test_two_noiseless_sparse_weights_are_recovered_from_three_points() -> None:
    """With one point, every support explains the output, and its weight is the density of the output under N(0,
    |x|²), where x has only the inputs of the support.
    """
    family, data = sample_sparse(0.0)
    prediction = SpikeAndSlab(facts=TaskFacts(family=family)).predict_next(data).mean
    torch.testing.assert_close(prediction[:, 3:], data.y[:, 3:], rtol=1e-4, atol=1e-4)
    x, y = data.x[:, 0].double().numpy(), data.y[:, 0, 0].double().numpy()
    squares = np.stack([x[:, i] ** 2 + x[:, j] ** 2 for i, j in combinations(range(5), 2)], 1)
    weights = np.exp(-(y[:, None] ** 2) / squares / 2) / np.sqrt(squares)
    mean = np.zeros_like(x)
    for k, support in enumerate(combinations(range(5), 2)):
        for j in support:
            mean[:, j] += weights[:, k] / weights.sum(1) * x[:, j] * y / squares[:, k]
    expected = (mean * data.x[:, 1].numpy()).sum(1)
    np.testing.assert_allclose(prediction[:, 1, 0].numpy(), expected, rtol=1e-3, atol=1e-3)


def test_too_many_supports_and_other_families_are_refused() -> None:
    family, data = sample_sparse(0.0, dim=40, sparsity=5)
    with refused("too-large", "SpikeAndSlab", "658,008", "5 of 40 weights", "16,000", "--baseline"):
        SpikeAndSlab(facts=TaskFacts(family=family)).predict_next(data)
    with refused("not-applicable", "SpikeAndSlab", "sparse-linear"):
        SpikeAndSlab(facts=TaskFacts(family=Combination(Combination.Parameters())))


@pytest.mark.parametrize("lengthscale", ["sqrt-dim", 1.5])
def test_kernel_ridge_equals_gaussian_process_regression(lengthscale: str | float) -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    data = draw(2, 15, 4)
    scale = 2.0 if lengthscale == "sqrt-dim" else lengthscale
    kernel = ConstantKernel(3.0) * RBF(scale)

    def reference(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> float:
        return float(GaussianProcessRegressor(kernel, alpha=0.2, optimizer=None).fit(x, y).predict(query[None])[0])

    settings = KernelRidgeSettings(lengthscale=lengthscale, variance=3.0, noise=0.2)
    prediction = KernelRidge(settings).predict_next(data).mean
    torch.testing.assert_close(prediction, predict_each_prefix(data, reference), rtol=1e-8, atol=1e-8)


def test_kernel_ridge_is_accurate_for_many_close_points_without_noise() -> None:
    x = torch.linspace(0, 1, 50, dtype=torch.float64)[None, :, None]
    prediction = KernelRidge(KernelRidgeSettings(noise=1e-18)).predict_next(Points.full(x, x.sin())).mean
    torch.testing.assert_close(prediction[:, 10:], x[:, 10:].sin(), rtol=1e-3, atol=1e-3)


def test_averaging_uses_the_mean_product_of_inputs_and_outputs_as_weights() -> None:
    data = draw(3, 12, 4)
    expected = predict_each_prefix(data, lambda x, y, q: q @ (x * y[:, None]).mean(0))
    torch.testing.assert_close(Averaging().predict_next(data).mean, expected)
