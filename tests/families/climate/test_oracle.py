"""The exact posterior of the synthetic climate against NumPy and SciPy, and its calibration."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.core.episodes import Episodes, Points
from iclbench.core.task import TaskFacts
from iclbench.families.climate.climate import Climate, ClimateParameters
from iclbench.families.climate.oracle import ClimateOracle
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from tests.families.climate.test_climate import KM_PER_LONGITUDE, temperature
from tests.refusals import refused

NOISE = 0.3


def build_family_oracle_and_episodes(
    count: int, points: int = 20, **parameters
) -> tuple[Climate, ClimateOracle, Episodes]:
    """Build the family, the oracle with access to the truth, and held-out episodes."""
    family = Climate(ClimateParameters(cells=5, **parameters)).held_out()
    episodes = family.sample(Request(count, points, torch.Generator().manual_seed(0))).to(dtype=torch.float64)
    return family, ClimateOracle(None, TaskFacts(family=family)).informed(episodes.truth), episodes


def points_in_physical_units(family: Climate, episodes: Episodes, e: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return inputs and temperatures of an episode in physical units, context points first, and the context size."""
    valid_points = [
        (points.x[e][points.mask[e]], points.y[e][points.mask[e]]) for points in (episodes.context, episodes.targets)
    ]
    x, y = (torch.cat(tensors).numpy() for tensors in zip(*valid_points, strict=True))
    mean, std = family.scale.x_mean.numpy(), family.scale.x_std.numpy()
    physical = x * std + mean
    if family.parameters.clock == "patch":
        physical[:, 0] += 6 * episodes.truth["start"][e, 0].item()
    return physical, y[:, 0] * family.scale.y_std.item() + family.scale.y_mean.item(), len(valid_points[0][0])


@pytest.mark.parametrize("clock", ["patch", "training"])
def test_the_posterior_is_the_conditional_of_a_normal_distribution(clock: str) -> None:
    family, oracle, episodes = build_family_oracle_and_episodes(4, targets=30, clock=clock)
    state = oracle.condition(episodes.context)
    means, covariances = oracle.posterior(state, episodes.targets.x)
    answer = oracle.query(state, episodes.targets.x)
    densities = answer.joint_log_likelihood(episodes.targets.y, episodes.targets.mask)
    for e in range(len(episodes)):
        x, y, n = points_in_physical_units(family, episodes, e)
        space, time, amplitude = (episodes.truth[name][e].item() for name in ("space", "time", "amplitude"))
        d = (x[:, None] - x)[..., :3] / [time, space / 111.2, space / KM_PER_LONGITUDE]
        joint = amplitude**2 * np.exp(-0.5 * (d**2).sum(-1)) + NOISE**2 * np.eye(len(x))
        expected = temperature(*x.T)
        gain = np.linalg.solve(joint[:n, :n], joint[:n, n:]).T
        mean = expected[n:] + gain @ (y[:n] - expected[:n])
        covariance = joint[n:, n:] - gain @ joint[:n, n:]
        shift, scale = family.scale.y_mean.item(), family.scale.y_std.item()
        valid = slice(0, len(x) - n)
        np.testing.assert_allclose(means[e, valid], (mean - shift) / scale, atol=1e-6)
        np.testing.assert_allclose(covariances[e, valid, valid], covariance / scale**2, atol=1e-8)
        np.testing.assert_allclose(answer.marginals.std[e, valid, 0], np.sqrt(np.diag(covariance)) / scale, atol=1e-6)
        # The density of the targets is the density of all points over the density of the context.
        density = densities[e].item() - (len(x) - n) * math.log(scale)
        joint_density = stats.multivariate_normal(expected, joint).logpdf(y)
        context_density = stats.multivariate_normal(expected[:n], joint[:n, :n]).logpdf(y[:n])
        assert density == pytest.approx(joint_density - context_density, abs=1e-4)


def test_joint_and_marginal_predictions_are_calibrated() -> None:
    """The whitened errors at all targets are independent standard normal numbers."""
    _, oracle, episodes = build_family_oracle_and_episodes(400, targets=12, max_related=0)
    mean, covariance = oracle.posterior(oracle.condition(episodes.context), episodes.targets.x)
    error = (episodes.targets.y[..., 0] - mean).unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), error, upper=False)[..., 0]
    assert stats.kstest(whitened[episodes.targets.mask].numpy(), "norm").pvalue > 1e-3
    answer = oracle.predict_targets(episodes.context, episodes.targets.x)
    covered = answer.scores(episodes.targets.y)["covered_90"].mean(1).numpy()
    assert abs(covered.mean() - 0.9) < 4 * covered.std() / math.sqrt(len(covered)) < 0.025


def test_related_datasets_are_ignored_and_an_empty_context_gives_the_prior() -> None:
    family, oracle, episodes = build_family_oracle_and_episodes(5, targets=8)
    with_related = oracle.predict_targets(episodes.context, episodes.targets.x, episodes.related)
    without = oracle.predict_targets(episodes.context, episodes.targets.x)
    assert torch.equal(with_related.mean, without.mean) and torch.equal(with_related.factor, without.factor)
    prior = oracle.predict_targets(episodes.context.span(0, 0), episodes.targets.x)
    expected = (episodes.truth["amplitude"].square() + NOISE**2).sqrt() / family.scale.y_std
    assert torch.allclose(prior.marginals.std[..., 0], expected.unsqueeze(1), atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "answers_have_the_right_shape",
        "answers_are_deterministic",
        "targets_do_not_see_each_other",
        "no_answer_sees_its_own_label",
        "later_points_change_nothing",
        "an_empty_context_works",
        "condition_and_query_equal_predict_targets",
        "update_equals_conditioning_on_everything",
        "states_can_be_indexed_and_saved",
    ],
)
def test_the_oracle_fulfils_the_contracts(name: str) -> None:
    kernels = {"space": [100.0, 300.0, 600.0], "time": [6.0, 20.0, 48.0], "amplitude": [1.0, 4.0, 2.0]}
    truth = {key: torch.tensor(values).double() for key, values in kernels.items()}
    oracle = ClimateOracle(None, TaskFacts(family=Climate(ClimateParameters()))).informed(
        truth | {"start": torch.tensor([[0], [800], [1400]])}
    )
    contract = next(c for c in CONTRACTS if c.name == name)
    contract.check(oracle, example_episodes(dim=4, points=7), Tolerance())


def test_masked_points_are_ignored() -> None:
    _, oracle, episodes = build_family_oracle_and_episodes(6, targets=8)
    assert not episodes.context.mask.all()
    context = episodes.context
    changed = Points(
        context.x + 5 * ~context.mask.unsqueeze(-1), context.y + 99 * ~context.mask.unsqueeze(-1), context.mask
    )
    before, after = (oracle.predict_targets(points, episodes.targets.x) for points in (context, changed))
    assert torch.allclose(before.mean, after.mean, atol=1e-9)
    assert torch.allclose(before.factor, after.factor, atol=1e-9)


def test_an_oracle_of_another_family_or_without_the_truth_is_refused() -> None:
    with refused("not-applicable", "ClimateOracle", "climate"):
        ClimateOracle(None, TaskFacts(family=Linear(Linear.Parameters())))
    family, _, episodes = build_family_oracle_and_episodes(1)
    with refused("missing-value", "oracle-climate", "informed"):
        ClimateOracle(None, TaskFacts(family=family)).predict_targets(episodes.context, episodes.targets.x)
