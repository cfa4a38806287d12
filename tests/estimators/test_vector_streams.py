"""Estimators of vector streams, compared with scikit-learn, and errors for other tasks."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as ScikitRidge

from iclbench.contracts import example_episodes
from iclbench.core.episodes import Points
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.estimators.autoregression import Autoregression, AutoregressionSettings
from iclbench.estimators.last_value import LastValue
from iclbench.estimators.ridge import Ridge
from iclbench.estimators.vector_stream import VectorStreamEstimator
from tests.refusals import refused


def stream(episodes: int = 3, points: int = 14, scale: float = 1.0) -> Points:
    """Sample random walks in two dimensions."""
    steps = torch.randn(episodes, points, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return Points.full(torch.empty(episodes, points, 0, dtype=torch.float64), scale * steps.cumsum(1))


def test_last_value_predicts_the_last_value() -> None:
    points = stream()
    prediction = LastValue().predict_next(points).mean
    assert torch.equal(prediction[:, 1:], points.y[:, :-1]) and not prediction[:, 0].any()


@pytest.mark.parametrize(("order", "penalty", "scale"), [(1, 0.3, 1.0), (2, 0.3, 1.0), (5, 2.0, 1.0), (4, 1e-3, 1e6)])
def test_autoregression_equals_scikit_learn_ridge_at_each_prefix(order: int, penalty: float, scale: float) -> None:
    points = stream(scale=scale)
    estimator = Autoregression(AutoregressionSettings(order=order, penalty=penalty))
    prediction = estimator.predict_next(points).mean.numpy()
    assert not prediction[:, 0].any()
    for b in range(3):
        for coordinate in range(2):
            y = points.y[b, :, coordinate].numpy()
            rows = np.array([[y[n - lag] if n >= lag else 0.0 for lag in range(1, order + 1)] for n in range(len(y))])
            for n in range(1, len(y)):
                model = ScikitRidge(penalty, fit_intercept=False, solver="svd").fit(rows[:n], y[:n])
                expected = model.predict(rows[n : n + 1])[0]
                assert prediction[b, n, coordinate] == pytest.approx(expected, rel=1e-7, abs=1e-9 * scale)


def test_autoregression_on_a_long_stream_reaches_the_noise_level() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.zeros(4, 3000, dtype=torch.float64)
    for n in range(2, 3000):
        y[:, n] = 1.2 * y[:, n - 1] - 0.8 * y[:, n - 2] + torch.randn(4, generator=generator, dtype=torch.float64)
    points = Points.full(y.new_empty(4, 3000, 0), y.unsqueeze(-1))
    error = Autoregression().predict_next(points).mean[..., 0] - y
    assert float(error[:, 200:].square().mean()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("estimator", [LastValue, Autoregression])
def test_other_tasks_are_refused(estimator: type[VectorStreamEstimator]) -> None:
    for episodes, facts in (
        (example_episodes(dim=4), TaskFacts()),
        (example_episodes(dim=0, classes=3), TaskFacts(classes=3)),
        (example_episodes(dim=4, classes=3), TaskFacts(classes=3)),
        (example_episodes(marks=3), TaskFacts(marks=3)),
    ):
        with refused("not-applicable", estimator.__name__):
            estimator(facts=facts).predict_next(episodes.context)
        with refused("not-applicable", estimator.__name__):
            estimator(facts=facts).predict_targets(episodes.context, episodes.queries.x)


def test_estimators_that_need_inputs_are_refused_on_streams() -> None:
    with refused("not-applicable", "Ridge"):
        Ridge().predict_next(stream())


@pytest.mark.parametrize("settings", [{"order": 0}, {"order": 1001}, {"penalty": 0.0}, {"penalty": -1.0}])
def test_invalid_settings_are_refused(settings: dict[str, float]) -> None:
    with refused("bad-value", next(iter(settings))):
        validate(AutoregressionSettings, settings, "ar-2")
