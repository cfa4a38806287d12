"""Every registered estimator, with the settings of every baseline card, keeps every contract."""

import pytest

from iclbench.cards import load_baseline, names, validate
from iclbench.contracts import CONTRACTS, Contract, Tolerance, example_episodes
from iclbench.estimators.base import Estimator, TaskFacts
from iclbench.registry import ESTIMATORS

# Oracles belong to one family and are tested with it.
BASELINES = [name for name in names("baselines") if not name.startswith("oracle-")]
# Steps of Adam amplify float32 rounding.
LOOSE = {"mlp": Tolerance(1e-3, 1e-3)}
# How long they are fitted makes no difference to the contracts.
SHORT = {"xgboost": {"n_estimators": 3}, "mlp": {"steps": 30}}


def build(baseline: str) -> Estimator:
    _, card = load_baseline(baseline)
    cls = ESTIMATORS.get(card.estimator)
    settings = validate(cls.Settings, {**card.settings, **SHORT.get(card.estimator, {})}, baseline)
    return cls(settings, TaskFacts(noise_to_signal=0.25, hidden_width=8), seed=1)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
@pytest.mark.parametrize("baseline", BASELINES)
def test_contract(baseline: str, contract: Contract) -> None:
    predictor = build(baseline)
    if not contract.applies(predictor):
        pytest.skip("not about this kind of predictor")
    contract.check(predictor, example_episodes(points=7, outputs=2), LOOSE.get(baseline, Tolerance()))


def test_every_estimator_has_a_card() -> None:
    assert set(ESTIMATORS.names()) <= {load_baseline(name)[1].estimator for name in names("baselines")}


def test_every_empty_context_is_answered_by_zero() -> None:
    episodes = example_episodes()
    for baseline in BASELINES:
        assert not build(baseline).predict_next(episodes.context, prefixes=[0]).mean.any(), baseline
