"""GD and GD++ on a probe set, compared with loops and independently measured errors.

The tests of the estimator check the errors on 2,000 skewed tasks for fixed values of gamma: 0.62 for GD and 0.043 for
GD++. These tests search for gamma.
"""

import numpy as np
import pytest

from iclbench.config.resolution import resolve_task
from iclbench.probing import descent
from iclbench.probing.descent import STEPS, step_errors, tune_gamma
from iclbench.probing.probe_set import ProbeSet


def plain_steps(
    x: np.ndarray, y: np.ndarray, query: np.ndarray, truth: np.ndarray, gamma: float, transformed: bool
) -> np.ndarray:
    """Return the mean squared error after each step of gradient descent, computed in a loop."""
    change = np.eye(x.shape[1]) - gamma * x.T @ x
    mapped, mapped_query = x @ change, query @ change
    covariance_inputs = mapped if transformed else x
    extremes = np.linalg.eigvalsh(covariance_inputs.T @ covariance_inputs / len(x))
    w, errors = np.zeros(x.shape[1]), []
    for _ in range(STEPS):
        w = w - 2 / (extremes[0] + extremes[-1]) * mapped.T @ (mapped @ w - y) / len(x)
        errors.append(np.mean((mapped_query @ w - truth) ** 2))
    return np.array(errors)


@pytest.mark.parametrize(("gamma", "step_size"), [(0.0, "raw"), (2e-3, "raw"), (2e-3, "transformed")])
def test_step_errors_equal_an_explicit_loop(gamma: float, step_size: str) -> None:
    prompts = ProbeSet(resolve_task("skewed-linear", "small")[0], "small", context=15, fit=4, test=7, tasks=5)
    errors = step_errors(prompts, gamma, step_size)  # type: ignore[arg-type]
    assert errors.shape == (5, STEPS)
    episodes = prompts.episodes
    for task in range(5):
        x, y = episodes.context.x[task].double().numpy(), episodes.context.y[task, :, 0].double().numpy()
        query, truth = (t[task, 4:].double().numpy() for t in (episodes.queries.x, episodes.queries.y[..., 0]))
        expected = plain_steps(x, y, query, truth, gamma, step_size == "transformed") / 5
        np.testing.assert_allclose(errors[task].numpy(), expected, rtol=1e-8)


@pytest.mark.slow
def test_gamma_and_errors_on_skewed_data_equal_independent_measurements() -> None:
    """For d = 20, 40 examples, 2,000 tasks and the step size of the raw inputs, the error after 23 updates is 0.62 for
    GD and 0.043 for GD++, with gamma near 2e-4."""
    task, _ = resolve_task("skewed-linear", "paper")
    prompts = ProbeSet(task, "paper", context=40, fit=10, test=10, tasks=2000)
    search = tune_gamma(prompts, "raw")
    assert len(search.grid) == 300
    assert (search.grid[0].item(), search.grid[-1].item()) == pytest.approx((1e-6, 1e-3))
    assert 1e-4 <= search.best <= 5e-4
    assert search.errors.min().item() == pytest.approx(0.043, rel=0.15)
    assert step_errors(prompts)[:, 22].mean().item() == pytest.approx(0.62, rel=0.15)
    assert step_errors(prompts, search.best)[:, 22].mean().item() == pytest.approx(0.043, rel=0.15)


def test_the_grid_of_gamma_is_extended_if_its_largest_value_is_the_best() -> None:
    task, _ = resolve_task("skewed-linear", "small")
    prompts = ProbeSet(task, "small", context=8, tasks=64)
    search = tune_gamma(prompts, "transformed")
    assert search.best > 1e-3
    assert search.best < search.grid[-1].item()
    assert search.errors.min() == search.errors[(search.grid == search.best).nonzero().item()]


@pytest.mark.parametrize(("setting", "value"), [("_DECADES", (-5, -3)), ("_LAST_DECADE", 3), ("_PER_DECADE", 50)])
def test_the_identity_of_gd_plus_plus_depends_on_all_settings_of_the_search(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = descent.DESCENTS[1].contestant.identity
    monkeypatch.setattr(descent, setting, value)
    assert descent.DESCENTS[1].contestant.identity != identity
