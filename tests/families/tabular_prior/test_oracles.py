"""The oracles of Gaussian-process tables against scikit-learn, and the exact average over hyperparameters."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from iclbench.config.resolution import resolve_task
from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.contracts.families import no_baseline_beats_a_listed_oracle
from iclbench.core.episodes import Episodes, Points
from iclbench.evaluation.contestants import baselines
from iclbench.evaluation.next_points import score_next
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.request import Request
from iclbench.families.tabular_prior.oracles import OracleGP, OracleGPPrior
from iclbench.families.tabular_prior.tabular_prior import TabularPrior, TabularPriorParameters
from tests.contracts.cases import check_contracts
from tests.refusals import refused


def build(**parameters: Any) -> TabularPrior:
    return TabularPrior(TabularPriorParameters(**{"kind": "gp", "dim": 3, **parameters}))


def draw(family: TabularPrior, episodes: int = 6, points: int = 25, seed: int = 0) -> Episodes:
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed)))


def regressor(lengthscale: float, noise: float, used: int) -> GaussianProcessRegressor:
    kernel = RBF(lengthscale * math.sqrt(used), length_scale_bounds="fixed")
    return GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None)


def used_inputs(family: TabularPrior, episodes: Episodes, table: int) -> np.ndarray:
    """Return the used columns of a table before rescaling."""
    used = int(episodes.truth["used"][table])
    factor = family.parameters.dim / used if family.parameters.rescale else 1.0
    return episodes.context.x[table, :, :used].double().numpy() / factor


@pytest.mark.parametrize("rescale", [False, True])
def test_the_posterior_equals_scikit_learn(rescale: bool) -> None:
    family = build(rescale=rescale)
    episodes = draw(family)
    oracle = OracleGP(None, family.facts()).informed(episodes.truth)
    by_prefix = oracle.predict_next(episodes.context)
    by_target = oracle.predict_targets(episodes.context.span(0, 15), episodes.context.x[:, 15:])
    for table in range(6):
        x, y = used_inputs(family, episodes, table), episodes.context.y[table, :, 0].double().numpy()
        lengthscale, noise = (float(episodes.truth[name][table]) for name in ("lengthscale", "noise"))
        for n in (1, 5, 24):
            fitted = regressor(lengthscale, noise, x.shape[1]).fit(x[:n], y[:n])
            mean, std = fitted.predict(x[n : n + 1], return_std=True)
            assert float(by_prefix.mean[table, n, 0]) == pytest.approx(mean.item(), abs=1e-5)
            assert float(by_prefix.std[table, n, 0]) == pytest.approx(math.hypot(std.item(), noise), abs=1e-5)
        mean, std = regressor(lengthscale, noise, x.shape[1]).fit(x[:15], y[:15]).predict(x[15:], return_std=True)
        np.testing.assert_allclose(by_target.mean[table, :, 0], mean, atol=1e-5)
        np.testing.assert_allclose(by_target.std[table, :, 0], np.hypot(std, noise), atol=1e-5)
    prior = by_prefix.at(torch.tensor([0]))
    assert not prior.mean.any()
    torch.testing.assert_close(prior.std[:, 0, 0].double(), (1 + episodes.truth["noise"] ** 2).sqrt())


@pytest.mark.parametrize("rescale", [False, True])
def test_the_mixture_is_weighted_by_the_evidence_computed_by_scikit_learn(rescale: bool) -> None:
    family = build(rescale=rescale, lengthscales=(0.5, 2.0), noises=(0.1, 0.3, 0.6))
    episodes = draw(family, seed=1)
    oracle = OracleGPPrior(None, family.facts())
    by_prefix = oracle.predict_next(episodes.context, prefixes=[0, 7, 24])
    by_target = oracle.predict_targets(episodes.context.span(0, 7), episodes.context.x[:, 7:])
    torch.testing.assert_close(by_prefix.at(torch.tensor([1])).means, by_target.at(torch.tensor([0])).means)
    for table in range(6):
        x, y = used_inputs(family, episodes, table), episodes.context.y[table, :, 0].double().numpy()
        for position, n in ((1, 7), (2, 24)):
            fitted = [regressor(*pair, x.shape[1]).fit(x[:n], y[:n]) for pair in product((0.5, 2.0), (0.1, 0.3, 0.6))]
            evidence = np.array([process.log_marginal_likelihood_value_ for process in fitted])
            weights = np.exp(evidence - evidence.max())
            ours = by_prefix.logits[table, position].softmax(0)
            np.testing.assert_allclose(ours, weights / weights.sum(), atol=1e-5)
            means = [process.predict(x[n : n + 1]).item() for process in fitted]
            np.testing.assert_allclose(by_prefix.means[table, position, :, 0], means, atol=1e-5)
    np.testing.assert_allclose(by_prefix.logits[:, 0].softmax(-1), np.full((6, 6), 1 / 6), atol=1e-6)


def test_with_a_single_pair_of_hyperparameters_both_oracles_are_equal() -> None:
    family = build(lengthscales=(1.0,), noises=(0.2,))
    episodes = draw(family)
    informed = OracleGP(None, family.facts()).informed(episodes.truth).predict_next(episodes.context)
    averaged = OracleGPPrior(None, family.facts()).predict_next(episodes.context)
    torch.testing.assert_close(averaged.mean, informed.mean)
    torch.testing.assert_close(averaged.std, informed.std)


def test_predictive_densities_multiply_to_the_joint_density_under_the_prior() -> None:
    """The joint density of all outputs is averaged over pairs of hyperparameters."""
    family = build()
    episodes = draw(family, points=12)
    scores = OracleGPPrior(None, family.facts()).predict_next(episodes.context).scores(episodes.context.y)
    total = scores["log_likelihood"].double().sum(1)
    for table in range(6):
        x, y = used_inputs(family, episodes, table), episodes.context.y[table, :, 0].double().numpy()
        pairs = product(family.parameters.lengthscales, family.parameters.noises)
        evidence = [regressor(*pair, x.shape[1]).fit(x, y).log_marginal_likelihood_value_ for pair in pairs]
        assert float(total[table]) == pytest.approx(np.logaddexp.reduce(evidence) - math.log(12), abs=1e-3)


def test_knowing_the_hyperparameters_helps_and_no_baseline_beats_an_oracle() -> None:
    family = build()
    no_baseline_beats_a_listed_oracle(family)
    episodes = draw(family, 400)
    informed = OracleGP(None, family.facts()).informed(episodes.truth).predict_next(episodes.context)
    averaged = OracleGPPrior(None, family.facts()).predict_next(episodes.context)
    gap = (
        informed.scores(episodes.context.y)["log_likelihood"] - averaged.scores(episodes.context.y)["log_likelihood"]
    ).mean(1)
    assert 0 < float(gap.mean()) < 0.5 and float(gap.mean()) > 4 * float(gap.std()) / 20


def test_oracle_gp_prior_passes_the_contracts() -> None:
    family = build(dim=4)
    check_contracts(CONTRACTS, OracleGPPrior(None, family.facts()), example_episodes(points=7), Tolerance())


def test_predictions_do_not_change_if_a_batch_is_processed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    family = build()
    episodes = draw(family, 5)
    oracle = OracleGPPrior(None, family.facts())
    expected = oracle.predict_next(episodes.context)
    monkeypatch.setattr("iclbench.families.tabular_prior.oracles._NUMBERS_AT_ONCE", 12 * 25**2 * 2)
    parts = oracle.predict_next(episodes.context)
    torch.testing.assert_close(parts.means, expected.means)
    torch.testing.assert_close(parts.logits, expected.logits)


def test_oracles_refuse_other_kinds_of_tables() -> None:
    for oracle in (OracleGP, OracleGPPrior):
        for family, shift in ((build(kind="mix"), "none"), (build(classes=2), "none"), (build(kind="bnn"), "scm")):
            with refused("not-applicable", oracle.__name__, "gp"):
                oracle(None, family.facts(shift))
        oracle(None, build(kind="mix").facts("gp"))
    family = build()
    with refused("missing-value", "informed"):
        OracleGP(None, family.facts()).predict_next(draw(family).context)
    assert family.is_oracle_optimal("oracle-gp", "points-40") and not family.is_oracle_optimal("oracle-gp", "scm")
    assert not build(classes=2).is_oracle_optimal("oracle-gp", "none")


def test_only_oracle_gp_prior_predicts_under_a_shift_to_another_kind_of_table() -> None:
    family = build()
    informed, averaged = OracleGP(None, family.facts("scm")), OracleGPPrior(None, family.facts("scm"))
    assert informed.too_long(3) and OracleGP(None, family.facts("points-9")).too_long(3) is None
    assert averaged.too_long(3) is None
    episodes = family.sample(Request(4, 9, torch.Generator().manual_seed(0), shift="scm"))
    assert averaged.predict_next(episodes.context).mean.isfinite().all()


def test_a_skipped_oracle_has_a_row_with_the_reason() -> None:
    prompts = PromptSet(resolve_task("tabular-gp", "smoke", {"episodes": 4})[0], "smoke", "scm")
    (contestant,) = baselines(prompts, ["oracle-gp"])
    (row,) = cast(list[dict[str, object]], score_next(contestant, prompts)["values"])
    assert (row["status"], row["reason"]) == ("skipped", contestant.predictor.too_long(0))


def test_masked_rows_are_ignored() -> None:
    family = build()
    episodes = draw(family, 3, 10)
    oracle = OracleGPPrior(None, family.facts())
    mask = torch.ones(3, 10, dtype=torch.bool)
    mask[:, 3] = False
    points = Points(episodes.context.x, episodes.context.y, mask)
    removed = episodes.context.map(lambda t: torch.cat([t[:, :3], t[:, 4:]], 1))
    masked, shorter = oracle.predict_next(points), oracle.predict_next(removed)
    keep = [0, 1, 2, 4, 5, 6, 7, 8, 9]
    torch.testing.assert_close(masked.at(torch.tensor(keep)).mean, shorter.mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(masked.at(torch.tensor(keep)).std, shorter.std, atol=1e-5, rtol=1e-5)
