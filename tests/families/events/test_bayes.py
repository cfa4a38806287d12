"""`BayesEvents`, which averages over point processes, against quadrature, the oracle and time rescaling."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from iclbench.core.events import GAP, MARK, EventPrediction
from iclbench.core.task import TaskFacts
from iclbench.estimators.poisson import MarkovMarks, Poisson
from iclbench.estimators.renewal import Renewal
from iclbench.families.events.bayes import BayesEvents, BayesEventsSettings
from iclbench.families.events.oracle import EventOracle
from iclbench.families.events.point_process import PointProcess
from iclbench.families.linear import Linear
from tests.families.events.test_point_process import SMALLEST_P, build_family, draw
from tests.families.sampling import in_float64
from tests.refusals import refused

POINTS = 9


def bayes(family: PointProcess, shift: str = "none", **settings: int) -> BayesEvents:
    return BayesEvents(BayesEventsSettings(**settings), TaskFacts(family=family, shift=shift))


def rates(answer: EventPrediction, gap: float, episodes: int) -> np.ndarray:
    """Return, for each mark, the density of an event with this mark after the given gap."""
    gaps = torch.full((episodes, POINTS), gap, dtype=torch.float64)
    return (answer.log_density(gaps).unsqueeze(-1) + answer.log_marks(gaps)).exp().numpy()


def mark_probabilities(marks: np.ndarray) -> np.ndarray:
    """Return the share of each mark among those that followed the last mark, with 1 added to every count."""
    counts = np.ones(3)
    for previous, following in pairwise(marks.astype(int)):
        counts[following] += previous == marks[-1]
    return counts / counts.sum()


def expected_density(kind: str, family: PointProcess, gaps: np.ndarray, next_gap: float) -> float:
    """Return the density of the next gap by quadrature over the parameters of this kind of process."""
    parameters, all_gaps = family.parameters, np.append(gaps, next_gap)
    if kind == "poisson":  # the logarithm of the rate is uniform

        def likelihood(log_rate: float, values: np.ndarray) -> float:
            return math.exp(len(values) * log_rate - math.exp(log_rate) * values.sum())

        low, high = np.log(parameters.rate)
        numerator, denominator = (
            integrate.quad(likelihood, low, high, args=(values,), epsrel=1e-9)[0] for values in (all_gaps, gaps)
        )
    elif kind == "renewal":

        def likelihood(sigma: float, values: np.ndarray) -> float:
            return stats.lognorm.pdf(values, sigma, scale=math.exp(-(sigma**2) / 2)).prod()

        numerator, denominator = (
            integrate.quad(likelihood, *parameters.sigma, args=(values,), epsrel=1e-9)[0] for values in (all_gaps, gaps)
        )
    else:

        def likelihood(alpha: float, trend: float, values: np.ndarray) -> float:
            log_likelihood, time = 0.0, 0.0
            for n, gap in enumerate(values):
                start = math.exp(trend * time - alpha * n)
                log_likelihood += math.log(start) + trend * gap - start * math.expm1(trend * gap) / trend
                time += gap
            return math.exp(log_likelihood)

        numerator, denominator = (
            integrate.dblquad(likelihood, *parameters.trend, *parameters.alpha, args=(values,), epsrel=1e-6)[0]
            for values in (all_gaps, gaps)
        )
    return numerator / denominator


@pytest.mark.parametrize(("kind", "tolerance"), [("poisson", 0.01), ("renewal", 0.02), ("self-correcting", 0.05)])
def test_densities_equal_quadrature_over_the_parameters(kind: str, tolerance: float) -> None:
    family = build_family(kind)
    episodes = in_float64(draw(family, 4, POINTS))
    answer, y = bayes(family, components=1024).predict_next(episodes.context), episodes.context.y.numpy()
    densities = rates(answer, 0.7, 4)
    for b in range(4):
        for n in (0, 1, 4, 8):
            gaps, marks = y[b, :n, GAP], y[b, :n, MARK].astype(int)
            probabilities = mark_probabilities(marks) if n else np.full(3, 1 / 3)
            density = expected_density(kind, family, gaps, 0.7)
            np.testing.assert_allclose(densities[b, n], density * probabilities, rtol=tolerance)


def test_predictions_equal_the_oracle_if_all_parameters_are_fixed() -> None:
    """The family has only Hawkes processes with one mark and one value of every parameter."""
    family = build_family("hawkes", marks=1, base=(0.3, 0.3), radius=(0.6, 0.6), decay=(1.5, 1.5))
    episodes = in_float64(draw(family, 6, POINTS, shift="time-scale-3"))
    oracle = EventOracle(facts=TaskFacts(family=family)).informed(episodes.truth)
    expected = oracle.predict_next(episodes.context)
    prediction = bayes(family, "time-scale-3", processes=16, components=4).predict_next(episodes.context)
    for gap in (0.01, 0.8, 5.0):
        np.testing.assert_allclose(rates(prediction, gap, 6), rates(expected, gap, 6), rtol=1e-9)
    np.testing.assert_allclose(prediction.mean(), expected.mean(), rtol=1e-9)
    np.testing.assert_allclose(prediction.quantile(0.3), expected.quantile(0.3), rtol=1e-6)


def test_processes_are_averaged_with_their_posterior_weights() -> None:
    """The reference computes the weights of 32 Hawkes processes and a few other processes one by one."""
    family = build_family()
    episodes = in_float64(draw(family, 5, POINTS))
    predictor = bayes(family, processes=32, components=8_000)
    processes, log_prior = predictor._candidates
    assert log_prior.exp().sum() == pytest.approx(1)
    y, densities = episodes.context.y, rates(predictor.predict_next(episodes.context), 0.4, 5)
    chain_probabilities = np.stack(
        [
            [mark_probabilities(marks[:i]) if i else np.full(3, 1 / 3) for i in range(POINTS)]
            for marks in y[..., MARK].numpy()
        ]
    )
    weighted_sum = np.zeros((5, 3))
    total_weight = np.zeros((5, 1))
    for s in range(len(log_prior)):
        process = processes[s : s + 1].map(lambda t: t.expand(5, *t.shape[1:]))
        oracle = EventOracle(facts=TaskFacts(family=family)).informed(process.tensors())
        prediction, n = oracle.predict_next(episodes.context), POINTS - 1
        log_time = prediction.log_density(y[..., GAP])[:, :-1].sum(1).numpy()
        is_hawkes = int(processes.kind[s]) == 3
        probabilities = prediction.log_marks(y[..., GAP]).exp().numpy() if is_hawkes else chain_probabilities
        observed = np.take_along_axis(probabilities[:, :n], y[:, :n, MARK].long().numpy()[..., None], 2)[..., 0]
        weight = np.exp((log_prior[s].item() + log_time + np.log(observed).sum(1))[:, None])
        gap = torch.full(y.shape[:2], 0.4, dtype=torch.float64)
        density = prediction.log_density(gap).exp().numpy()[:, -1:]
        marks = prediction.log_marks(gap).exp().numpy()[:, -1] if is_hawkes else chain_probabilities[:, -1]
        weighted_sum, total_weight = weighted_sum + weight * density * marks, total_weight + weight
    np.testing.assert_allclose(densities[:, -1], weighted_sum / total_weight, rtol=2e-3)


@pytest.mark.parametrize("shift", ["none", "time-scale-0.5", "only-hawkes", "branching-0.9"])
def test_predictions_are_calibrated(shift: str) -> None:
    """Integrated intensities have the unit exponential distribution over episodes of all kinds."""
    family = build_family(burn_in=shift == "only-hawkes")
    episodes = draw(family, 300, POINTS, seed=1, shift=shift)
    answer = bayes(family, shift, processes=1024, components=64).predict_next(episodes.context)
    integrated = -answer.log_survival(episodes.context.y[..., GAP]).double().numpy()
    for n in (0, 3, POINTS - 1):
        assert stats.kstest(integrated[:, n], "expon").pvalue > SMALLEST_P


@pytest.mark.slow
def test_the_loss_is_higher_than_for_the_oracle_and_lower_than_for_baselines() -> None:
    family = build_family()
    episodes = draw(family, 400, 16, seed=2)
    facts = TaskFacts(family=family, marks=3)
    oracle = EventOracle(facts=facts).informed(episodes.truth)
    others = [estimator(facts=facts) for estimator in (Poisson, MarkovMarks, Renewal)]
    loss, oracle_loss, *other_losses = (
        predictor.predict_next(episodes.context).loss(episodes.context.y).mean(1).double()
        for predictor in (bayes(family, processes=1024, components=64), oracle, *others)
    )
    for difference in (loss - oracle_loss, *(other - loss for other in other_losses)):
        assert difference.mean() / difference.std() * math.sqrt(len(difference)) > 4


def test_masked_points_are_ignored() -> None:
    family = build_family()
    points = in_float64(draw(family, 6, 7)).context
    mask = torch.rand(points.mask.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    masked = replace(points, y=points.y.masked_fill(~mask.unsqueeze(-1), 7.0), mask=mask)
    predictor = bayes(family, processes=256, components=32)
    packed_means, means = (predictor.predict_next(context).mean() for context in (masked.compact()[0], masked))
    order = mask.cumsum(1) - mask.long()
    for b in range(6):
        torch.testing.assert_close(means[b][mask[b]], packed_means[b][order[b][mask[b]]])


def test_selected_prefixes_do_not_change_predictions_and_extreme_gaps_give_finite_predictions() -> None:
    family = build_family()
    points = in_float64(draw(family, 3, 7)).context
    predictor = bayes(family, processes=128, components=16)
    means = predictor.predict_next(points).mean()
    prefixes = [5, 0, 5, 2]
    torch.testing.assert_close(predictor.predict_next(points, prefixes=prefixes).mean(), means[:, prefixes])
    assert predictor.predict_next(points, prefixes=[]).mean().shape == (3, 0)
    assert predictor.predict_next(points.span(0, 0)).mean().shape == (3, 0)
    y = points.y.clone()
    y[0, 2, GAP], y[1, 2, GAP] = 0.0, 1e9
    answer = predictor.predict_next(replace(points, y=y))
    assert answer.mean().isfinite().all() and answer.log_density(points.y[..., GAP]).isfinite().all()
    y[0, 2, GAP] = 1e-9
    torch.testing.assert_close(predictor.predict_next(replace(points, y=y)).mean(), answer.mean())


def test_other_families_and_too_large_matrices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("not-applicable", "BayesEvents", "point-process"):
        BayesEvents(facts=TaskFacts(family=Linear(Linear.Parameters())))
    monkeypatch.delenv("ICLBENCH_MAX_BYTES", raising=False)
    family = build_family(marks=1000)
    with refused("too-large", "Bayes", "1.00 GiB"):
        bayes(family).predict_next(draw(build_family(), 1, 2).context)


def test_the_minimum_gap_scales_with_the_unit_of_time() -> None:
    """With times multiplied by 1e-6, a gap of 1e-10 is not clamped."""
    family = build_family()
    points = in_float64(draw(family, 4, 6)).context
    y = points.y.clone()
    y[:, 2, GAP] = 1e-4
    scale = torch.tensor([1e-6, 1.0, 1e-6], dtype=torch.float64)
    settings = {"processes": 128, "components": 32}
    expected = bayes(family, **settings).predict_next(replace(points, y=y)).mean()
    scaled = bayes(family, "time-scale-0.000001", **settings).predict_next(replace(points, y=y * scale)).mean()
    torch.testing.assert_close(1e6 * scaled, expected, rtol=1e-6, atol=0)
