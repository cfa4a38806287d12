"""Nearest neighbours, two-layer networks, gradient descent, and the worker processes of estimators."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from iclbench.core.episodes import Points
from iclbench.estimators import mlp, workers
from iclbench.estimators.base import TaskFacts
from iclbench.estimators.constant import Mean, Zero
from iclbench.estimators.gradient_descent import DescentSettings, GradientDescent, descent_curve, search_gamma
from iclbench.estimators.knn import NearestNeighbours, NeighbourSettings
from iclbench.estimators.trees import GreedyTree, TreeSettings
from iclbench.families.linear import SkewedLinear, SkewedLinearParameters
from iclbench.families.request import Request


def draw(episodes: int, points: int, dim: int) -> Points:
    g = torch.Generator().manual_seed(4)
    return Points.full(torch.randn(episodes, points, dim, generator=g), torch.randn(episodes, points, 1, generator=g))


def test_zero_predicts_zero_and_mean_predicts_the_mean_output() -> None:
    points = draw(3, 7, 2)
    assert not Zero().predict_next(points).mean.any()
    torch.testing.assert_close(Mean().predict_next(points).mean[:, 5, 0], points.y[:, :5, 0].mean(1))


@pytest.mark.parametrize("k", [1, 3, 20])
def test_nearest_neighbours_equal_scikit_learn(k: int) -> None:
    from sklearn.neighbors import KNeighborsRegressor

    points = draw(3, 15, 4)
    prediction = NearestNeighbours(NeighbourSettings(k=k)).predict_next(points).mean
    for b in range(3):
        for n in range(1, 15):
            model = KNeighborsRegressor(min(k, n)).fit(points.x[b, :n].numpy(), points.y[b, :n].numpy())
            expected = model.predict(points.x[b, n : n + 1].numpy())
            np.testing.assert_allclose(prediction[b, n], expected[0], rtol=1e-5, atol=1e-6)


def test_nearest_neighbours_are_invariant_to_translations_of_the_inputs() -> None:
    points = draw(3, 30, 1).to(dtype=torch.float64)
    far_points = replace(points, x=points.x + 1.7e9)
    near_points = replace(far_points, x=far_points.x - 1.7e9)
    far, near = (NearestNeighbours().predict_next(inputs).mean for inputs in (far_points, near_points))
    assert torch.equal(far, near)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_networks_trained_in_parallel_equal_networks_trained_by_autograd_and_adam(
    dtype: torch.dtype, tolerance: float
) -> None:
    points = draw(3, 9, 5).to(dtype=dtype)
    x, y, counts = points.x, points.y[..., 0], torch.tensor([4, 9, 1])
    start = tuple(p.to(dtype) for p in mlp.TwoLayerNetwork(facts=TaskFacts(hidden_width=16)).initial_weights(counts, 5))
    trained = mlp.train(start, x, y, counts, steps=100, lr=5e-3)
    for i, n in enumerate(counts):
        network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)).to(dtype)
        with torch.no_grad():
            for p, value in zip(
                network.parameters(), (start[0][i].T, start[1][i, 0], start[2][i].T, start[3][i, 0]), strict=True
            ):
                p.copy_(value)
        adam = torch.optim.Adam(network.parameters(), lr=5e-3)
        for _ in range(100):
            adam.zero_grad()
            nn.functional.mse_loss(network(x[i, :n])[:, 0], y[i, :n]).backward()
            adam.step()
        torch.testing.assert_close(mlp.forward(trained, x)[i], network(x[i])[:, 0], rtol=tolerance, atol=tolerance)


def test_initial_weights_have_the_distribution_of_torch_linear_and_depend_on_the_seed() -> None:
    counts = torch.tensor([3, 3, 7])
    hidden, bias, output, offset = mlp.TwoLayerNetwork(facts=TaskFacts(hidden_width=400)).initial_weights(counts, 25)
    for p, bound in ((hidden, 1 / 5), (bias, 1 / 5), (output, 1 / 20), (offset, 1 / 20)):
        assert p.abs().max() <= bound
    assert hidden.std() == pytest.approx(1 / 5 / 3**0.5, rel=0.05)
    assert torch.equal(hidden[0], hidden[1]), "prefixes of equal length have equal initial weights"
    assert not torch.equal(hidden[0], hidden[2])
    other = mlp.TwoLayerNetwork(facts=TaskFacts(hidden_width=400), seed=1).initial_weights(counts, 25)[0]
    assert not torch.equal(hidden, other)


@pytest.mark.slow
def test_worker_processes_give_the_same_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    points = draw(3, 10, 4)
    tree = GreedyTree(TreeSettings(backend="library"))
    expected = tree.predict_next(points).mean
    monkeypatch.setenv("ICLBENCH_WORKERS", "2")
    monkeypatch.setattr(workers, "_MIN_SECONDS", 0.0)
    assert torch.equal(tree.predict_next(points).mean, expected)


@pytest.mark.slow
def test_work_is_completed_if_a_worker_is_killed() -> None:
    """A worker process is killed, so its parent is a new process and not the test process."""
    script = """
        import os, signal, sys
        from iclbench.estimators import workers

        def work(n, parent):
            if n == 1 and os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return n * n

        workers._MIN_SECONDS = 0.0
        print(workers.map_episodes(work, [(n, os.getpid()) for n in range(4)], 1.0))
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ICLBENCH_WORKERS": "2"},
        check=True,
    )
    assert process.stdout.split("\n")[0] == "[0, 1, 4, 9]"
    assert "Traceback" not in process.stderr and process.stderr


def plain_descent(
    x: np.ndarray, y: np.ndarray, query: np.ndarray, gamma: float, steps: int, transformed: bool
) -> float:
    """Return the prediction of gradient descent at one query, computed step by step.

    If `transformed`, the step size depends on the eigenvalues of the transformed inputs, otherwise of the raw inputs.
    """
    k, d = x.shape
    transform = np.eye(d) - gamma * x.T @ x
    transformed_x = x @ transform
    x_for_step_size = transformed_x if transformed else x
    values = np.linalg.eigvalsh(x_for_step_size.T @ x_for_step_size / k)
    size = 2 / (values[-1] + (values[0] if k >= d else 0))
    w = np.zeros(d)
    for _ in range(steps):
        w = w - size * transformed_x.T @ (transformed_x @ w - y) / k
    return float(query @ transform @ w)


@pytest.mark.parametrize(
    ("gamma", "step_size"), [(0.0, "raw"), (2e-3, "raw"), (2e-3, "transformed")], ids=["gd", "gd++", "gd++ transformed"]
)
def test_gradient_descent_equals_explicit_steps_at_each_prefix(gamma: float, step_size: str) -> None:
    points = draw(2, 14, 5).to(dtype=torch.float64)
    settings = DescentSettings(steps=7, gamma=gamma, step_size=step_size)
    prediction = GradientDescent(settings).predict_next(points).mean
    for b in range(2):
        x, y = points.x[b].numpy(), points.y[b, :, 0].numpy()
        for n in range(1, 14):
            expected = plain_descent(x[:n], y[:n], x[n], gamma, 7, step_size == "transformed")
            assert prediction[b, n, 0].item() == pytest.approx(expected, abs=1e-10)
            curve = descent_curve(points[b : b + 1].span(0, n), points.x[b : b + 1, n : n + 1], 7, gamma, step_size)
            assert curve[0, 0, -1].item() == pytest.approx(expected, abs=1e-10)
            after_3_steps = plain_descent(x[:n], y[:n], x[n], gamma, 3, step_size == "transformed")
            assert curve[0, 0, 2].item() == pytest.approx(after_3_steps, abs=1e-10)


def test_gradient_descent_ignores_masked_points() -> None:
    """The reference takes explicit steps on the valid points. Contexts have different sizes."""
    points, targets = draw(3, 12, 4).to(dtype=torch.float64), draw(3, 6, 4).to(dtype=torch.float64)
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(2)) < 0.6
    assert len(set(mask.sum(1).tolist())) > 1 and not mask[:, 0].all()
    offset = 50 * (~mask).unsqueeze(-1)
    context = Points(points.x + offset, points.y - offset, mask)
    prediction = descent_curve(context, targets.x, 7, 2e-3)
    squares = []
    for b in range(3):
        x, y = points.x[b][mask[b]].numpy(), points.y[b, :, 0][mask[b]].numpy()
        for q, query in enumerate(targets.x[b].numpy()):
            expected = plain_descent(x, y, query, 2e-3, 7, False)
            assert prediction[b, q, -1].item() == pytest.approx(expected, abs=1e-10)
            squares.append((expected - targets.y[b, q].item()) ** 2)
    _, errors = search_gamma(context, targets, 7, grid=torch.tensor([2e-3], dtype=torch.float64))
    assert errors.item() == pytest.approx(np.mean(squares), abs=1e-10)


@pytest.mark.slow
def test_gd_and_gd_plus_plus_reproduce_independently_measured_errors_on_skewed_data() -> None:
    """With another implementation, MSE/d after 23 steps on 40 examples was 0.62 for GD, and 0.043 for GD++ with gamma
    from 1e-4 to 5e-4."""
    family = SkewedLinear(SkewedLinearParameters(dim=20))
    points = family.sample(Request(2000, 60, torch.Generator().manual_seed(0))).context
    context, targets = points.span(0, 40), points.span(40)

    def error(gamma: float) -> float:
        answers = descent_curve(context, targets.x, 23, gamma)[..., -1:]
        return float((answers - targets.y).square().mean()) / 20

    assert error(0.0) == pytest.approx(0.62, rel=0.15)
    assert error(1e-4) == pytest.approx(0.043, rel=0.15)
    assert error(5e-4) == pytest.approx(0.043, rel=0.15)
    first_episodes = slice(0, 200)
    grid = torch.logspace(-6, -3, 25, dtype=torch.float64)
    best, errors = search_gamma(context[first_episodes], targets[first_episodes], 23, grid=grid)
    assert 1e-4 <= best <= 5e-4
    assert errors.min() / 20 == pytest.approx(0.043, rel=0.15)


@pytest.mark.parametrize("scale", [0.1, 3.0, 8.0, 300.0])
def test_gamma_is_searched_on_the_grid_of_the_paper(scale: float) -> None:
    """The grid has 300 logarithmically spaced values from 1e-6 to 1e-3. The reference errors are computed with explicit
    steps.
    """
    points = draw(2, 9, 3).to(dtype=torch.float64)
    points = Points.full(scale * points.x, points.y)
    context, targets = points.span(0, 8), points.span(8)
    best, errors = search_gamma(context, targets, 5)
    grid = np.geomspace(1e-6, 1e-3, 300)
    assert errors.shape == (300,)
    assert best == pytest.approx(grid[errors.numpy().argmin()], rel=1e-9)
    for index in (0, 150, 299):
        prediction = [
            plain_descent(c.x[0].numpy(), c.y[0, :, 0].numpy(), t.x[0, 0].numpy(), grid[index], 5, False)
            for c, t in ((context[b : b + 1], targets[b : b + 1]) for b in range(2))
        ]
        expected = np.mean((np.array(prediction) - targets.y[:, 0, 0].numpy()) ** 2)
        assert errors[index].item() == pytest.approx(expected, rel=1e-6)
