"""Estimators of events: comparison with explicit fits and SciPy, masks, censored points, units of time, and errors."""

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.config.cards import load_baseline
from iclbench.core.episodes import Points
from iclbench.core.events import CENSORED, EventPrediction
from iclbench.estimators.base import TaskFacts
from iclbench.estimators.event_estimator import EventEstimator
from iclbench.registry import ESTIMATORS
from tests.refusals import refused

EPISODES, EVENTS, MARKS = 5, 20, 3
NAMES = ["poisson", "renewal", "markov-marks", "hawkes-mle"]
# From this number of events on, a prediction does not depend on the unit of time in the prior.
UNIT_FREE = {"poisson": 2, "renewal": 1, "markov-marks": 2, "hawkes-mle": 2}


def estimator(name: str, mark_count: int = MARKS, **settings: float) -> EventEstimator:
    cls = ESTIMATORS.get(name)
    return cls(cls.Settings(**{**load_baseline(name)[1].settings, **settings}), TaskFacts(marks=mark_count))


def sequences(gaps: np.ndarray, marks: np.ndarray) -> Points:
    y = torch.tensor(np.stack([gaps, marks, gaps.cumsum(-1)], -1), dtype=torch.float64)
    return Points.full(y[..., :0], y)


def draw(episodes: int = EPISODES, events: int = EVENTS, mark_count: int = MARKS, seed: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    return sequences(rng.lognormal(0.2, 0.9, (episodes, events)), rng.integers(mark_count, size=(episodes, events)))


def assert_equal(prediction: EventPrediction, expected: EventPrediction, rtol: float = 1e-9) -> None:
    for name, t in expected.tensors().items():
        torch.testing.assert_close(prediction.tensors()[name], t, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("unit", [0.7, 1e-5, 1e5])
def test_poisson_predicts_the_rate_and_the_mark_frequencies_of_each_prefix(unit: float) -> None:
    points = draw()
    prediction = estimator("poisson", smoothing=1.5, unit=unit).predict_next(points)
    assert not prediction.excited.any() and not prediction.decay.any()
    for b in range(EPISODES):
        _, marks, times = points.y[b].numpy().T
        for n in range(EVENTS):
            elapsed = times[n - 1] if n else 0.0
            prior_gap = sorted([unit, elapsed / n / 5, elapsed / n * 5])[1] if n >= 2 else unit
            counts = np.array([(marks[:n] == k).sum() for k in range(MARKS)])
            expected = (n + 1) / (elapsed + prior_gap) * (counts + 0.5) / (n + 1.5)
            np.testing.assert_allclose(prediction.base[b, n], expected, rtol=1e-12)


def test_renewal_equals_a_lognormal_fit_by_scipy_with_a_prior_on_the_variance() -> None:
    points = draw()
    prediction = estimator("renewal").predict_next(points)
    assert prediction.logits.shape == (EPISODES, EVENTS, 1)
    for b in range(EPISODES):
        gaps, marks, _ = points.y[b].numpy().T
        for n in range(EVENTS):
            shape, _, scale = stats.lognorm.fit(gaps[:n], floc=0) if n > 1 else (0.0, 0.0, gaps[0] if n else 1.0)
            size = max(n, 1)
            spread = np.sqrt((1 + 1 / size) * (3 + size * shape**2) / (size + 1))
            assert prediction.locs[b, n].item() == pytest.approx(np.log(scale), rel=1e-6, abs=1e-7)
            assert prediction.scales[b, n].item() == pytest.approx(spread, rel=1e-6)  # the tolerance of SciPy's fit
            counts = np.array([(marks[:n] == k).sum() for k in range(MARKS)])
            np.testing.assert_allclose(prediction.mark_probabilities()[b, n], (counts + 1) / (n + 3), rtol=1e-12)


def test_constant_gaps_give_a_finite_density() -> None:
    points = sequences(np.full((1, 50), 0.1), np.zeros((1, 50)))
    prediction = estimator("renewal").predict_next(points)
    n = np.arange(1, 50)
    np.testing.assert_allclose(prediction.scales[0, 1:, 0], np.sqrt(3 / n), rtol=1e-7)


def test_markov_marks_are_predicted_by_smoothed_transition_counts() -> None:
    points = draw()
    prediction, poisson = (estimator(name).predict_next(points) for name in ("markov-marks", "poisson"))
    torch.testing.assert_close(prediction.base.sum(-1), poisson.base.sum(-1))
    probabilities = prediction.mark_probabilities().numpy()
    for b in range(EPISODES):
        marks = points.y[b, :, 1].long().tolist()
        for n in range(EVENTS):
            counts = np.ones(MARKS)
            for i in range(1, n):
                if marks[i - 1] == marks[n - 1]:
                    counts[marks[i]] += 1
            np.testing.assert_allclose(probabilities[b, n], counts / counts.sum(), rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_each_prefix_is_fitted_separately(name: str) -> None:
    points, predictor = draw(), estimator(name)
    curve = predictor.predict_next(points)
    for n in (0, 1, 3, 4, 11, EVENTS - 1):
        assert_equal(curve.at(slice(n, n + 1)), predictor.predict_targets(points.span(0, n), points.x[:, :1]))
    assert_equal(predictor.predict_next(points, prefixes=[2, 9]), curve.at(torch.tensor([2, 9])))


@pytest.mark.parametrize("name", NAMES)
def test_predictions_do_not_depend_on_other_episodes_or_masked_events(name: str) -> None:
    """Episodes have different lengths, and the values of masked events come from another sample."""
    points, predictor = draw(), estimator(name)
    other = draw(seed=1)
    rng = np.random.default_rng(2)
    positions = np.stack([np.sort(rng.permutation(2 * EVENTS)[:EVENTS]) for _ in range(EPISODES)])
    y, mask = torch.cat([other.y, other.y], 1), torch.zeros(EPISODES, 2 * EVENTS, dtype=torch.bool)
    for b, position in enumerate(torch.tensor(positions)):
        y[b, position], mask[b, position] = points.y[b], torch.arange(EVENTS) < EVENTS - b
    masked = Points(y[..., :0], y, mask)
    targets = predictor.predict_targets(masked, y[:, :2, :0])
    curve = predictor.predict_next(masked)
    for b in range(EPISODES):
        episode = points[b : b + 1].span(0, EVENTS - b)
        assert_equal(targets[b : b + 1], predictor.predict_targets(episode, episode.x[:, :2]))
        assert_equal(curve[b : b + 1].at(mask[b].nonzero()[:, 0]), predictor.predict_next(episode))


@pytest.mark.parametrize("name", NAMES)
def test_a_censored_point_is_predicted_but_not_part_of_the_fit(name: str) -> None:
    points, predictor = draw(), estimator(name)
    y = points.y.clone()
    y[::2, -1] = torch.tensor([3.0, CENSORED, 99.0], dtype=y.dtype)
    censored = Points.full(points.x, y)
    assert_equal(predictor.predict_next(censored), predictor.predict_next(points))
    prediction = predictor.predict_targets(censored, points.x[:, :1])
    shorter = predictor.predict_targets(points.span(0, EVENTS - 1), points.x[:, :1])
    assert_equal(prediction[::2], shorter[::2])
    assert_equal(prediction[1::2], predictor.predict_targets(points, points.x[:, :1])[1::2])


@pytest.mark.parametrize(("first_factor", "second_factor"), [(1e-6, 1e-3), (1e3, 1e6)])
@pytest.mark.parametrize("name", NAMES)
def test_scaling_time_only_shifts_the_log_density(name: str, first_factor: float, second_factor: float) -> None:
    points, predictor = draw(events=12), estimator(name)
    scores = []
    for factor in (first_factor, second_factor):
        scaled = sequences(factor * points.y[..., 0].numpy(), points.y[..., 1].numpy())
        scores.append(predictor.predict_next(scaled).scores(scaled.y))
    unit_free, shift = slice(UNIT_FREE[name], None), np.log(second_factor / first_factor)
    expected = scores[0]["nll_time"][:, unit_free] + shift
    torch.testing.assert_close(scores[1]["nll_time"][:, unit_free], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(scores[1]["nll_mark"], scores[0]["nll_mark"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_the_effect_of_a_wrong_time_unit_decreases_with_the_number_of_events(name: str, factor: float) -> None:
    """Apart from the shift, the mean loss increases by at most 0.2 nats after 5 events and 0.03 nats after 60."""
    points, predictor = draw(episodes=60, events=61), estimator(name)
    scaled = sequences(factor * points.y[..., 0].numpy(), points.y[..., 1].numpy())
    plain, other = (
        predictor.predict_next(p, prefixes=[5, 60]).log_density(p.y[:, [5, 60], 0]) for p in (points, scaled)
    )
    losses = (plain - other - np.log(factor)).mean(0).tolist()
    assert losses[0] < 0.2 and abs(losses[1]) < 0.03


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_every_score_is_finite(name: str, scale: float, spread: float) -> None:
    """Predictions are in single precision. The cases include constant gaps, bursts and marks that never occur."""
    rng = np.random.default_rng(3)
    gaps = scale * rng.lognormal(0, spread, (4, 30))
    marks = np.minimum(np.arange(30) // 7, 4) * (np.arange(4)[:, None] > 0)
    points = sequences(gaps, marks).to(dtype=torch.float32)
    prediction = estimator(name, mark_count=6).predict_next(points)
    assert all(t.dtype == torch.float32 for t in prediction.tensors().values())
    for metric, values in prediction.scores(points.y).items():
        assert values.isfinite().all(), metric
    assert prediction.log_survival(points.y[..., 0]).isfinite().all()
    torch.testing.assert_close(prediction.mark_probabilities().sum(-1), torch.ones(4, 30))


@pytest.mark.parametrize("name", NAMES)
def test_without_events_the_expected_gap_is_the_unit_and_marks_are_equally_likely(name: str) -> None:
    prediction = estimator(name, unit=2.5).predict_next(draw(), prefixes=[0])
    expected_gap = prediction.locs[..., 0].exp() if name == "renewal" else prediction.mean()
    torch.testing.assert_close(expected_gap, torch.full_like(expected_gap, 2.5))
    torch.testing.assert_close(
        prediction.mark_probabilities(), torch.full((EPISODES, 1, MARKS), 1 / 3, dtype=torch.float64)
    )


@pytest.mark.parametrize("name", NAMES)
def test_other_tasks_and_invalid_events_are_refused(name: str) -> None:
    points = draw()
    cls = ESTIMATORS.get(name)
    with refused("not-applicable", cls.__name__):
        cls(facts=TaskFacts()).predict_next(points)
    with refused("not-applicable", cls.__name__, f"({EPISODES}, {EVENTS}, 1)"):
        estimator(name).predict_next(Points.full(points.x, points.y[..., :1]))
    with refused("bad-data", "mark 2", "0 to 1"):
        estimator(name, mark_count=2).predict_next(points)
    tied = points.y.clone()
    tied[1, 3, 0] = 0
    with refused("bad-data", "gaps"):
        estimator(name).predict_next(Points.full(points.x, tied))
