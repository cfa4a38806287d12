"""Maximum likelihood for Hawkes processes, compared with explicit sums, finite differences, SciPy and simulations."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from iclbench.config.cards import load_baseline
from iclbench.core.episodes import Points
from iclbench.estimators.base import TaskFacts
from iclbench.estimators.event_estimator import EventSettings
from iclbench.estimators.hawkes_likelihood import Hawkes, gradient, log_likelihood, observed_information
from iclbench.estimators.hawkes_mle import HawkesMLE, HawkesSettings, fit, standard_errors
from iclbench.estimators.poisson import Poisson

TRUTH = Hawkes(np.array([0.2, 0.1, 0.4]), np.array([[0.3, 0.2, 0.1], [0.1, 0.4, 0.2], [0.2, 0.1, 0.3]]), 1.5)


@cache
def simulate(events: int, seed: int = 0, process: Hawkes = TRUTH) -> tuple[np.ndarray, np.ndarray]:
    """Simulate a process by Ogata's thinning. Between events, the rate only decreases, so its current value is an
    upper bound.
    """
    rng = np.random.default_rng(seed)
    excited, gap = np.zeros(len(process.base)), 0.0
    gaps, marks = [], []
    while len(gaps) < events:
        bound = (process.base + excited).sum()
        wait = rng.exponential(1 / bound)
        gap += wait
        excited *= np.exp(-process.decay * wait)
        rates = (process.base + excited).cumsum()
        if (u := bound * rng.random()) < rates[-1]:
            mark = int(np.searchsorted(rates, u, side="right"))
            gaps.append(gap)
            marks.append(mark)
            excited += process.decay * process.branching[:, mark]
            gap = 0.0
    return np.array(gaps), np.array(marks)


def as_points(sequences: list[tuple[np.ndarray, np.ndarray]]) -> Points:
    y = torch.tensor(np.stack([np.stack([gaps, marks, gaps.cumsum()], -1) for gaps, marks in sequences]))
    return Points.full(y[..., :0], y)


def naive_log_likelihood(gaps: np.ndarray, marks: np.ndarray, process: Hawkes, open_interval: float = 0.0) -> float:
    """Return the log-likelihood, computed as a double sum over all pairs of events."""
    times, mu, A, beta = gaps.cumsum(), process.base, process.branching, process.decay
    end = times[-1] + open_interval
    total = -mu.sum() * end
    for i, t in enumerate(times):
        kernel = beta * np.exp(-beta * (t - times[:i]))
        total += np.log(mu[marks[i]] + A[marks[i], marks[:i]] @ kernel)
        total -= A[:, marks[i]].sum() * (1 - np.exp(-beta * (end - t)))
    return total


def finite_differences(function, vector: np.ndarray) -> np.ndarray:
    steps = 1e-6 * np.eye(len(vector))
    return np.array([(function(vector + step) - function(vector - step)) / 2e-6 for step in steps])


def test_the_likelihood_equals_a_sum_over_all_pairs_of_events() -> None:
    gaps, marks = simulate(60)
    assert log_likelihood(gaps, marks, TRUTH) == pytest.approx(naive_log_likelihood(gaps, marks, TRUTH), rel=1e-12)


def test_gradient_and_information_equal_finite_differences() -> None:
    gaps, marks = simulate(60)
    vector = TRUTH.vector()
    slopes = finite_differences(lambda v: naive_log_likelihood(gaps, marks, Hawkes.of_vector(v)), vector)
    np.testing.assert_allclose(gradient(gaps, marks, TRUTH).vector(), slopes, rtol=1e-5, atol=1e-6)
    curvatures = finite_differences(lambda v: gradient(gaps, marks, Hawkes.of_vector(v)).vector(), vector)
    np.testing.assert_allclose(observed_information(gaps, marks, TRUTH), -curvatures, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("events", [2_000, 10_000])
def test_parameters_are_recovered_within_their_standard_errors(events: int) -> None:
    gaps, marks = simulate(events, seed=1)
    estimate = fit(gaps, marks, 3)
    assert np.abs(gradient(gaps, marks, estimate).vector()).max() < 1e-3
    errors = standard_errors(gaps, marks, estimate).vector()
    deviation = estimate.vector() - TRUTH.vector()
    assert (np.abs(deviation) < 3.5 * errors).all() and (errors < 0.5 * (2_000 / events) ** 0.5).all()
    # Test all parameters jointly, with their correlations.
    assert deviation @ observed_information(gaps, marks, estimate) @ deviation < stats.chi2(len(deviation)).ppf(0.999)


def test_standard_errors_are_the_square_roots_of_the_inverse_information() -> None:
    gaps, marks = simulate(2_000, seed=1)
    estimate = fit(gaps, marks, 3)
    covariance = np.linalg.inv(observed_information(gaps, marks, estimate))
    np.testing.assert_allclose(standard_errors(gaps, marks, estimate).vector(), np.sqrt(np.diag(covariance)), rtol=1e-8)


def test_a_parameter_at_a_bound_has_no_standard_error() -> None:
    """With constant gaps, mark 0 does not excite itself. Without excitation, base rates have the standard errors of
    a Poisson process.
    """
    gaps, marks = np.full(30, 0.5), np.tile([0, 1, 1], 10)
    estimate = fit(gaps, marks, 2)
    errors = standard_errors(gaps, marks, estimate)
    assert not estimate.branching[0, 0] and np.isnan(errors.branching[0, 0])
    poisson = Hawkes(np.array([10, 20]) / 15, np.zeros((2, 2)), 1.0)
    assert np.isnan(standard_errors(gaps[:3], marks[:3], TRUTH).vector()).all()  # the true parameters are not a maximum
    errors = standard_errors(gaps, marks, poisson)
    np.testing.assert_allclose(errors.base, np.sqrt([10, 20]) / 15, rtol=1e-10)
    assert np.isnan(errors.branching).all() and np.isnan(errors.decay)


def test_the_decay_is_clipped_to_its_range() -> None:
    """The decay is 1 / observed time for a growing rate, and `fastest` / geometric mean gap for pairs of events."""
    growing, zeros = 1 / np.arange(1.0, 31), np.zeros(30, int)
    assert fit(growing, zeros, 1).decay == pytest.approx(1 / growing.sum(), rel=1e-6)
    pairs = np.tile([3.0, 1e-4], 15)
    estimate = fit(pairs, zeros, 1, fastest=4.0)
    assert estimate.decay == pytest.approx(4 / stats.gmean(pairs), rel=1e-6) and estimate.branching.any()
    errors = standard_errors(pairs, zeros, estimate, fastest=4.0)
    assert np.isnan(errors.decay) and np.isfinite(errors.base).all()
    assert fit(np.ones(4), zeros[:4], 1, fastest=0.02).decay == pytest.approx(1 / 4, rel=1e-6)


def penalised_likelihood(gaps, marks, process, smoothing, penalty) -> float:
    prior = smoothing * (np.log(process.base).mean() - gaps.mean() * process.base.sum())
    return log_likelihood(gaps, marks, process) + prior - penalty * process.branching.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "smoothing", "penalty"),
    [(5, 3.0, 1.0), (12, 3.0, 1.0), (12, 0.3, 0.0), (50, 3.0, 1.0), (50, 1.0, 0.0)],
)
def test_scipy_finds_no_higher_maximum_from_any_start(events: int, smoothing: float, penalty: float) -> None:
    gaps, marks = simulate(events, seed=events)
    slowest, fastest = 1 / gaps.sum(), 10 / stats.gmean(gaps)
    estimate = fit(gaps, marks, 3, smoothing=smoothing, penalty=penalty)
    assert slowest * (1 - 1e-9) <= estimate.decay <= fastest * (1 + 1e-9) and estimate.branching.min() >= 0
    maximum = penalised_likelihood(gaps, marks, estimate, smoothing, penalty)

    def loss(v: np.ndarray) -> tuple[float, np.ndarray]:
        process = Hawkes.of_vector(np.concatenate([np.exp(v[:3]), v[3:12], np.exp(v[12:])]))
        slope = gradient(gaps, marks, process).vector()
        slope[:3] += smoothing * (1 / process.base / 3 - gaps.mean())
        slope[3:12] -= penalty
        slope[[0, 1, 2, 12]] *= np.exp(v[[0, 1, 2, 12]])
        return -penalised_likelihood(gaps, marks, process, smoothing, penalty), -slope

    rng = np.random.default_rng(0)
    limits = [(-15, 5)] * 3 + [(0, 20)] * 9 + [(np.log(slowest), np.log(fastest))]
    maxima = []
    for _ in range(6):
        start = np.concatenate([np.log(rng.uniform(0.1, 1, 3)), rng.uniform(0, 0.5, 9), [rng.uniform(*limits[-1])]])
        maxima.append(-optimize.minimize(loss, start, jac=True, bounds=limits, method="L-BFGS-B").fun)
    assert maximum > max(maxima) - 1e-8
    assert maximum < max(maxima) + 1  # the reference has found a similar maximum


@pytest.mark.parametrize("mark_count", [3, 100])
def test_the_fit_satisfies_the_optimality_conditions(mark_count: int) -> None:
    """Derivatives are 0 for positive parameters and not positive for parameters at 0, even with more parameters than
    events.
    """
    rng = np.random.default_rng(0)
    gaps, marks = simulate(40)
    marks = marks if mark_count == 3 else rng.permutation(mark_count)[:40]
    estimate = fit(gaps, marks, mark_count, smoothing=3.0, penalty=0.5)
    slope = gradient(gaps, marks, estimate)
    base_slope = slope.base + 3 / mark_count / estimate.base - 3 * gaps.mean()
    branching_slope = slope.branching - 0.5
    np.testing.assert_allclose(base_slope / gaps.sum(), 0, atol=1e-6)
    np.testing.assert_allclose(branching_slope[estimate.branching > 0], 0, atol=1e-4)
    assert (branching_slope < 1e-4).all() and (estimate.branching > 0).any()
    assert estimate.decay * slope.decay == pytest.approx(0, abs=1e-3)
    assert estimate.base.min() > 0


def test_the_prediction_is_the_fitted_intensity_after_the_last_event() -> None:
    sequences = [simulate(30, seed) for seed in range(3)]
    points = as_points(sequences)
    card_settings = {**load_baseline("hawkes-mle")[1].settings, "smoothing": 2.0, "unit": 0.3}
    settings, facts = HawkesSettings(**card_settings), TaskFacts(marks=3)
    estimate = HawkesMLE(settings, facts).predict_next(points)
    poisson = Poisson(EventSettings(smoothing=2.0, unit=0.3), facts).predict_next(points)
    for name, t in poisson.tensors().items():
        torch.testing.assert_close(estimate.tensors()[name][:, :4], t[:, :4])
    fit_settings = {key: card_settings[key] for key in ("smoothing", "penalty", "fastest")}
    for b, (gaps, marks) in enumerate(sequences):
        for n in (4, 17, 29):
            process = fit(gaps[:n], marks[:n], 3, **fit_settings)
            ages = gaps[:n].sum() - gaps[:n].cumsum()
            excited = sum(
                process.branching[:, k] * process.decay * np.exp(-process.decay * age)
                for k, age in zip(marks[:n], ages, strict=True)
            )
            np.testing.assert_allclose(estimate.base[b, n], process.base, rtol=1e-9)
            np.testing.assert_allclose(estimate.excited[b, n], excited, rtol=1e-9)
            assert estimate.decay[b, n].item() == pytest.approx(process.decay, rel=1e-12)


def loss_of(predictor: Poisson | HawkesMLE, sequences: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the mean negative log-likelihood of the last event of each sequence."""
    points = as_points(sequences)
    last = points.count - 1
    answer = predictor.predict_next(points, prefixes=[last])
    return answer.loss(points.y[:, last:]).mean().item()


@pytest.mark.slow
def test_the_fit_predicts_hawkes_processes_better_than_a_constant_rate() -> None:
    """After 300 events, the fit closes more than two thirds of the gap in loss between a constant rate and the true
    process.
    """
    sequences = [simulate(301, 100 + seed) for seed in range(40)]
    poisson, hawkes = (loss_of(cls(facts=TaskFacts(marks=3)), sequences) for cls in (Poisson, HawkesMLE))
    truth = np.mean([log_likelihood(g[:300], m[:300], TRUTH) - log_likelihood(g, m, TRUTH) for g, m in sequences])
    assert poisson - hawkes > 2 / 3 * (poisson - truth) > 0.05


def test_a_fit_on_few_events_without_a_penalty_is_worse_than_a_constant_rate() -> None:
    sequences, facts = [simulate(9, 900 + seed) for seed in range(200)], TaskFacts(marks=3)
    poisson = loss_of(Poisson(facts=facts), sequences)
    unpenalised, penalised = (loss_of(HawkesMLE(HawkesSettings(penalty=p), facts), sequences) for p in (0.0, 1.0))
    assert unpenalised > poisson + 0.2 and penalised < poisson + 0.1


@pytest.mark.parametrize("open_interval", [0.0, 7.0])
def test_the_open_interval_is_part_of_the_likelihood_and_the_fit(open_interval: float) -> None:
    gaps, marks = simulate(60)
    vector = TRUTH.vector()
    assert log_likelihood(gaps, marks, TRUTH, open_interval) == pytest.approx(
        naive_log_likelihood(gaps, marks, TRUTH, open_interval), rel=1e-12
    )
    slopes = finite_differences(lambda v: naive_log_likelihood(gaps, marks, Hawkes.of_vector(v), open_interval), vector)
    np.testing.assert_allclose(gradient(gaps, marks, TRUTH, open_interval).vector(), slopes, rtol=1e-5, atol=1e-6)
    curvatures = finite_differences(
        lambda v: gradient(gaps, marks, Hawkes.of_vector(v), open_interval).vector(), vector
    )
    np.testing.assert_allclose(
        observed_information(gaps, marks, TRUTH, open_interval), -curvatures, rtol=1e-5, atol=1e-5
    )
    estimate = fit(gaps, marks, 3, open_interval=open_interval)
    free = estimate.vector() > 0
    assert np.abs(gradient(gaps, marks, estimate, open_interval).vector()[free][:-1]).max() < 1e-3


def test_a_long_open_interval_lowers_the_rate() -> None:
    """The penalty removes all excitation, so the rate is the number of events divided by the observed time."""
    gaps, marks = np.full(30, 0.5), np.zeros(30, int)
    estimate = fit(gaps, marks, 1, open_interval=45.0, penalty=1e6)
    assert estimate.base[0] == pytest.approx(30 / (15 + 45), rel=1e-6)
