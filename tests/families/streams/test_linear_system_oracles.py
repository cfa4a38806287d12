"""The oracles of linear systems against dense Gaussian algebra, finer grids, and the errors in a pilot study."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.predictor import Predictor
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.estimators.autoregression import Autoregression
from iclbench.estimators.constant import Zero
from iclbench.estimators.last_value import LastValue
from iclbench.families.linear import Linear
from iclbench.families.streams.linear_system import LinearSystems
from iclbench.families.streams.linear_system_oracles import (
    BayesKalmanSettings,
    OracleBayesKalman,
    OracleKalman,
    SystemState,
)
from tests.contracts.cases import check_contracts
from tests.families.sampling import in_float64
from tests.families.streams.linear_gaussian import joint_covariance, next_element, rotation
from tests.families.streams.test_linear_system import SMALLEST_P, build_family, draw, elements
from tests.refusals import refused


def kalman(episodes: Episodes, family: LinearSystems | None = None, shift: str = "none") -> OracleKalman:
    return OracleKalman(facts=TaskFacts(family=family or build_family(), shift=shift)).informed(episodes.truth)


def bayes(family: LinearSystems | None = None, shift: str = "none", **settings: int) -> OracleBayesKalman:
    return OracleBayesKalman(BayesKalmanSettings(**settings), TaskFacts(family=family or build_family(), shift=shift))


@pytest.mark.parametrize(
    ("shift", "noises"),
    [
        ("none", (0.2, 0.3)),
        ("switch", (0.2, 0.3)),
        ("process-noise-0.5+noisy-0.6", (0.5, 0.6)),
        ("radius-1.1+switch", (0.2, 0.3)),
    ],
)
def test_the_kalman_filter_equals_the_dense_posterior(shift: str, noises: tuple[float, float]) -> None:
    points = 21
    episodes = in_float64(draw(episodes=6, points=points, shift=shift))
    prediction, truth = kalman(episodes, shift=shift).predict_next(episodes.context), episodes.truth
    for b, y in enumerate(elements(episodes)):
        before = rotation(float(truth["radius"][b]), float(truth["angle"][b]))
        after = rotation(float(truth["later_radius"][b]), float(truth["later_angle"][b]))
        # Element 10 is the first element of the later system.
        matrices = [before if n < points // 2 - 1 else after for n in range(points - 1)]
        means, variances = next_element(joint_covariance(matrices, *noises), y)
        np.testing.assert_allclose(prediction.mean[b, :, 0], means, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(prediction.std[b, :, 0], np.sqrt(variances), rtol=1e-8)


def test_the_bayes_predictor_equals_the_sum_over_its_grid() -> None:
    """The reference computes weights and predictions for two radii times three angles one by one."""
    family = build_family(radius=(0.6, 1.0), angle=(0.3, 1.5))
    episodes = in_float64(draw(family, episodes=4, points=10, shift="noisy-0.5"))
    prediction = bayes(family, "noisy-0.5", radii=2, angles=3).predict_next(episodes.context)
    nodes = [(radius, angle) for radius in (0.7, 0.9) for angle in (0.5, 0.9, 1.3)]
    covariances = [joint_covariance([rotation(*node)] * 9, 0.2, 0.5) for node in nodes]
    for b, y in enumerate(elements(episodes)):
        for n in range(10):
            weights = np.exp(
                [stats.multivariate_normal.logpdf(y[:n], cov=c[:n, :n]) if n else 0.0 for c in covariances]
            )
            moments = [tuple(part[n] for part in next_element(c, y)) for c in covariances]
            means, variances = np.array(moments).T
            weights /= weights.sum()
            density = weights @ stats.norm.pdf(y[n], means, np.sqrt(variances))
            assert float(prediction.mean[b, n]) == pytest.approx(weights @ means, rel=1e-8, abs=1e-10)
            assert float(prediction.log_likelihood(episodes.context.y)[b, n]) == pytest.approx(
                np.log(density), rel=1e-8
            )


def test_the_bayes_predictor_equals_the_kalman_filter_if_all_systems_are_the_same() -> None:
    shift = "radius-0.9+angle-1.2+process-noise-0.1"
    episodes = in_float64(draw(points=15, shift=shift))
    prediction = bayes(shift=shift).predict_next(episodes.context)
    expected = kalman(episodes, shift=shift).predict_next(episodes.context)
    assert prediction.logits.shape[-1] == 1, "a range of length 0 has one node"
    np.testing.assert_allclose(prediction.mean, expected.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(prediction.std, expected.std, rtol=1e-12)


def log_density_differences(count: int, **grid: int) -> Tensor:
    """Return the log-density of each element with the shipped grid, minus its log-density with `grid`."""
    episodes, log_density_changes = in_float64(draw(episodes=count, points=64, seed=7)), []
    for start in range(0, count, 20):
        context = episodes.context[start : start + 20]
        shipped, other = (bayes(**settings).predict_next(context).log_likelihood(context.y) for settings in ({}, grid))
        log_density_changes.append(shipped - other)
    return torch.cat(log_density_changes)


def test_twice_as_many_angles_do_not_change_the_bayes_predictor() -> None:
    changes = log_density_differences(20, angles=384)
    assert changes.mean(0).abs().max() < 1e-3 and changes.abs().max() < 1e-2


def test_a_quarter_of_the_angles_changes_the_bayes_predictor() -> None:
    assert log_density_differences(20, angles=48).abs().max() > 1e-2


@pytest.mark.slow
def test_finer_grids_do_not_change_the_bayes_predictor_on_many_sequences() -> None:
    changes = log_density_differences(200, angles=384)
    assert changes.mean(0).abs().max() < 1e-4 and changes.abs().max() < 1e-2
    with_more_radii = log_density_differences(200, radii=24)
    assert with_more_radii.abs().max() < 0.1 and with_more_radii.mean().abs() < 1e-4


def probability_transforms(count: int, points: int, shift: str = "none") -> Tensor:
    """Return the predictive cumulative probability of each element.

    If the predictive distributions are exact, these probabilities are independent and uniform (Rosenblatt 1952).
    """
    context, predictor = draw(episodes=count, points=points, seed=3, shift=shift).context, bayes(shift=shift)
    chunks = [context[start : start + 40] for start in range(0, count, 40)]
    return torch.cat([predictor.predict_next(chunk).cumulative(chunk.y)[..., 0] for chunk in chunks]).double()


@pytest.mark.parametrize("shift", ["none", "radius-0.9+noisy-0.6"])
def test_predictions_are_calibrated(shift: str) -> None:
    values = probability_transforms(200, 16, shift)
    for uniform in (values.flatten(), values[:, 1], values[:, 15]):
        assert stats.kstest(uniform, "uniform").pvalue > SMALLEST_P


@pytest.mark.slow
def test_predictions_of_5000_sequences_are_calibrated() -> None:
    values = probability_transforms(5000, 64)
    for uniform in (values.flatten(), *values[:, [1, 2, 4, 8, 16, 32, 63]].T):
        assert stats.kstest(uniform, "uniform").pvalue > SMALLEST_P
    correlations = np.corrcoef(values[:, [1, 2, 3, 4, 8, 63]].T.numpy())
    assert np.abs(correlations - np.eye(6)).max() < 4 / math.sqrt(5000)


# Mean squared errors in the pilot study after these numbers of elements, over 512 sequences.
PILOT_SEQUENCES, PILOT_LENGTHS = 512, [1, 2, 4, 8, 16, 32, 63]
PILOT = {
    "zero": [0.97, 0.90, 0.67, 0.56, 0.49, 0.52, 0.48],
    "ar-2": [0.97, 1.15, 0.56, 0.29, 0.25, 0.24, 0.22],
    "bayes": [0.97, 0.68, 0.33, 0.23, 0.21, 0.21, 0.18],
    "kalman": [0.56, 0.28, 0.19, 0.18, 0.20, 0.21, 0.18],
}
# Mean errors over all 64 elements.
PILOT_MEANS = {"ar-2": 0.297, "bayes": 0.244, "kalman": 0.211}
PILOT_LAST_VALUE = 0.9


@pytest.fixture(scope="module")
def squared_errors() -> dict[str, np.ndarray]:
    episodes = draw(episodes=256, points=64, seed=11)
    predictors: dict[str, Predictor] = {
        "zero": Zero(),
        "last-value": LastValue(),
        "ar-2": Autoregression(),
        "bayes": bayes(),
        "kalman": kalman(episodes),
    }
    context = episodes.context
    return {
        name: (predictor.predict_next(context).point() - context.y).double().square()[..., 0].numpy()
        for name, predictor in predictors.items()
    }


@pytest.mark.parametrize("name", PILOT)
def test_squared_errors_agree_with_the_pilot_study(name: str, squared_errors: dict[str, np.ndarray]) -> None:
    """The tolerance is four standard errors of the difference, plus the rounding of the published errors."""
    errors = squared_errors[name]
    scale = math.sqrt(1 / len(errors) + 1 / PILOT_SEQUENCES)
    deviation = np.abs(errors.mean(0)[PILOT_LENGTHS] - PILOT[name])
    assert (deviation < 4 * scale * errors.std(0)[PILOT_LENGTHS] + 0.005).all(), deviation
    if name in PILOT_MEANS:
        means = errors.mean(1)
        assert abs(means.mean() - PILOT_MEANS[name]) < 4 * scale * means.std() + 5e-4


def test_the_error_of_last_value_roughly_agrees_with_the_pilot_study(squared_errors: dict[str, np.ndarray]) -> None:
    means = squared_errors["last-value"][:, 1:].mean(1)
    scale = math.sqrt(1 / len(means) + 1 / PILOT_SEQUENCES)
    assert abs(means.mean() - PILOT_LAST_VALUE) < 4 * scale * means.std() + 0.05


def test_the_bayes_predictor_passes_the_contracts() -> None:
    episodes = example_episodes(dim=0, points=7, outputs=1)
    predictor = bayes(radii=3, angles=8)
    check_contracts([c for c in CONTRACTS if c.is_checkable(predictor, episodes)], predictor, episodes, Tolerance())


@pytest.mark.parametrize("shift", ["none", "switch"])
def test_predictions_from_a_state_equal_those_from_the_sequence(shift: str, tmp_path: Path) -> None:
    episodes = in_float64(draw(episodes=5, points=11, shift=shift))
    for predictor in (kalman(episodes, shift=shift), bayes(shift=shift, radii=3, angles=8)):
        points = episodes.context
        expected = predictor.predict_next(points)
        state = predictor.condition(points.span(0, 3))
        state = predictor.update(predictor.update(state, points.span(3, 3)), points.span(3, 9))
        state[1:4].save(tmp_path / "state")
        loaded = SystemState.load(tmp_path / "state")
        later = predictor.update(loaded, points[1:4].span(9, 10))
        for n, at_state, rows in ((9, state, slice(None)), (9, loaded, slice(1, 4)), (10, later, slice(1, 4))):
            answer = predictor.query(at_state, points.x.new_empty(len(at_state.filters.count), 2, 0))
            for query in (0, 1):
                for name, tensor in answer.tensors().items():
                    torch.testing.assert_close(tensor[:, query], expected.tensors()[name][rows, n])


def test_masked_elements_are_ignored() -> None:
    episodes = in_float64(draw(episodes=6, points=9))
    points = episodes.context
    mask = torch.rand(points.mask.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    masked = replace(points, y=points.y.masked_fill(~mask.unsqueeze(-1), torch.nan), mask=mask)
    for predictor in (kalman(episodes), bayes(radii=3, angles=8)):
        answers = predictor.predict_next(masked).mean
        for b in range(6):
            present = points[b : b + 1].map(lambda t, b=b: t[:, mask[b]])
            single = predictor.informed({name: t[b : b + 1] for name, t in episodes.truth.items()})
            torch.testing.assert_close(answers[b, mask[b]], single.predict_next(present).mean[0])


def test_predictions_at_selected_prefixes_and_in_chunks_equal_those_at_all_prefixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episodes = in_float64(draw(episodes=7, points=8))
    points = episodes.context
    for predictor in (kalman(episodes), bayes(radii=3, angles=8)):
        means = predictor.predict_next(points).mean
        prefixes = [5, 0, 5, 2]
        torch.testing.assert_close(predictor.predict_next(points, prefixes=prefixes).mean, means[:, prefixes])
        assert predictor.predict_next(points, prefixes=[]).mean.shape == (7, 0, 1)
        assert predictor.predict_next(points.span(0, 0)).mean.shape == (7, 0, 1)
        monkeypatch.setattr("iclbench.families.streams.linear_system_oracles._FILTERS_AT_ONCE", 48)
        torch.testing.assert_close(predictor.predict_next(points).mean, means)
        monkeypatch.undo()
    empty = bayes(radii=3, angles=8).predict_next(points[:0])
    assert empty.mean.shape == (0, 8, 1)


def test_long_sequences_have_finite_scores() -> None:
    """Log-densities of thousands of elements do not underflow."""
    episodes = draw(episodes=2, points=3000)
    prediction = bayes(radii=3, angles=16).predict_next(episodes.context)
    assert prediction.log_likelihood(episodes.context.y).isfinite().all()
    assert float((prediction.mean - episodes.context.y)[:, 1000:].square().mean()) < 0.3


def test_other_families_missing_truth_and_bad_grids_are_refused() -> None:
    for oracle in (OracleKalman, OracleBayesKalman):
        with refused("not-applicable", oracle.__name__, "linear-system"):
            oracle(facts=TaskFacts(family=Linear(Linear.Parameters())))
    with refused("missing-value", "oracle-kalman", "informed"):
        OracleKalman(facts=TaskFacts(family=build_family())).predict_next(draw().context)
    with refused("bad-value", "angles"):
        validate(BayesKalmanSettings, {"angles": 0}, "oracle-bayes-kalman")
