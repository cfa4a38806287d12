"""Every registered estimator passes every contract, with the settings of each baseline card."""

import pytest
import torch

from iclbench.config.cards import card_names, load_baseline
from iclbench.contracts import Contract, Tolerance, example_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.events import EventPrediction
from iclbench.core.predictions import Categorical
from iclbench.core.settings import validate
from iclbench.estimators.base import FittedPredictor, TaskFacts
from iclbench.families.linear import NoisyLinear, SparseLinear
from iclbench.registry import ESTIMATORS
from tests.contracts.cases import ONE_FAMILY_ESTIMATORS, check_contracts, split_cases

BASELINES = [name for name in card_names("baselines") if load_baseline(name)[1].estimator not in ONE_FAMILY_ESTIMATORS]
# Training with Adam amplifies rounding errors of float32.
TOLERANCES = {"mlp": Tolerance(1e-3, 1e-3)}
# Settings that shorten the fit. They have no effect on the contracts.
SHORT_SETTINGS: dict[str, dict[str, object]] = {
    "xgboost": {"n_estimators": 3},
    "mlp": {"steps": 30},
    "sklearn.ensemble:RandomForestClassifier": {"n_estimators": 2},
    "sklearn.ensemble:RandomForestRegressor": {"n_estimators": 2},
    "xgboost:XGBClassifier": {"n_estimators": 2},
    "sklearn.model_selection:GridSearchCV": {"param_grid": {"n_estimators": [2, 3]}},
}
CLASSES = 3
MARKS = 3
SPARSE = SparseLinear(SparseLinear.Parameters(dim=4, sparsity=2))
# Families for the estimators that need the family of the task.
FAMILIES = {
    "feature-ridge": SPARSE,
    "spike-and-slab": SPARSE,
    "pool-oracle": NoisyLinear(NoisyLinear.Parameters(dim=4, pool=8)),
}


def build(baseline: str) -> FittedPredictor:
    _, card = load_baseline(baseline)
    cls = ESTIMATORS.get(card.estimator)
    settings = validate(cls.Settings, {**card.settings, **SHORT_SETTINGS.get(card.estimator, {})}, baseline)
    family = FAMILIES.get(card.estimator)
    marks = MARKS if "event" in cls.heads else None
    facts = TaskFacts(noise_to_signal=0.25, hidden_width=8, family=family, classes=CLASSES, marks=marks)
    return cls(settings, facts, seed=1)


def episodes_for(predictor: FittedPredictor) -> Episodes:
    if "event" in predictor.heads:
        return example_episodes(points=7, marks=MARKS)
    classes = CLASSES if "categorical" in predictor.heads else None
    return example_episodes(dim=0 if predictor.reads_streams else 4, points=7, outputs=2, classes=classes)


def kind_of(baseline: str) -> str:
    """Return the estimator of a card, or "library" for all classes with the interface of scikit-learn."""
    estimator = load_baseline(baseline)[1].estimator
    return "library" if ":" in estimator else estimator


# Cards of one estimator differ only in a number. `make test` checks all contracts for the first card, and only those
# about predictions for the others. `make test-slow` checks all contracts for all cards.
FIRST_CARDS = {kind_of(name): name for name in reversed(BASELINES)} | {"library": "logistic-regression"}
CARD_CONTRACTS = {"answers_have_the_right_shape", "the_two_questions_agree", "update_equals_conditioning_on_everything"}


def is_slow(baseline: str, contract: Contract) -> bool:
    if kind_of(baseline) == "library":  # each fit takes milliseconds, and tests/estimators compares the predictions
        return baseline not in FIRST_CARDS.values()
    return baseline not in FIRST_CARDS.values() and contract.name not in CARD_CONTRACTS


@pytest.mark.parametrize(("baseline", "contracts"), split_cases([(name,) for name in BASELINES], is_slow))
def test_estimators_pass_the_contracts(baseline: str, contracts: list[Contract]) -> None:
    predictor = build(baseline)
    check_contracts(contracts, predictor, episodes_for(predictor), TOLERANCES.get(baseline, Tolerance()))


def test_every_estimator_has_a_card() -> None:
    assert set(ESTIMATORS.names()) <= {load_baseline(name)[1].estimator for name in card_names("baselines")}


def test_the_prediction_from_an_empty_context_is_zero_or_uniform() -> None:
    for baseline in BASELINES:
        if baseline == "oracle-pool":  # predicts the mean over its pool
            continue
        predictor = build(baseline)
        answer = predictor.predict_next(episodes_for(predictor).context, prefixes=[0])
        if isinstance(answer, EventPrediction):
            marks = answer.mark_probabilities()
            torch.testing.assert_close(marks, torch.full_like(marks, 1 / MARKS))
        elif isinstance(answer, Categorical):
            torch.testing.assert_close(answer.logits.softmax(-1), torch.full_like(answer.logits, 1 / CLASSES))
        else:
            assert not next(iter(answer.tensors().values())).any(), baseline


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "baseline",
    [
        pytest.param(
            name, marks=pytest.mark.slow if kind_of(name) == "library" and name not in FIRST_CARDS.values() else []
        )
        for name in BASELINES
    ],
)
def test_predictions_have_the_dtype_of_the_points(baseline: str, dtype: torch.dtype) -> None:
    """The dtype is checked with and without a context."""
    predictor = build(baseline)
    episodes = episodes_for(predictor)
    context, targets = episodes.context.to(dtype=dtype), episodes.targets.to(dtype=dtype)
    for answer in (
        predictor.predict_next(context),
        predictor.predict_targets(context, targets.x),
        predictor.predict_targets(context.span(0, 0), targets.x),
    ):
        assert {t.dtype for t in answer.tensors().values()} == {dtype}


@pytest.mark.parametrize(
    "baseline",
    ["gd", "gp-rbf", "hawkes-mle", "knn-3", "lasso-1e-2", "least-squares", "markov-marks", "mean", "renewal", "ridge"],
)
def test_methods_that_compute_in_double_precision_do_so_even_for_float32_points(baseline: str) -> None:
    """Predictions for float32 points equal the rounded predictions for the same points in float64."""
    predictor = build(baseline)
    context = episodes_for(predictor).context.to(dtype=torch.float32)
    actual = predictor.predict_next(context).tensors()
    exact = predictor.predict_next(context.to(dtype=torch.float64)).tensors()
    for name, t in actual.items():
        assert torch.equal(t, exact[name].float()), name
