"""Trees and boosting are bitwise equal to scikit-learn and XGBoost for all prefixes, including ties."""

import json
import logging
import sys

import numpy as np
import pytest
import torch

from iclbench.config.cards import load_baseline
from iclbench.core.episodes import Points
from iclbench.core.settings import validate
from iclbench.estimators import compiled_boosting, trees
from iclbench.estimators.compiling import compiled
from iclbench.estimators.trees import BoostingSettings, GreedyTree, LibraryEstimator, TreeSettings, XGBoost

# Prefixes of 40 points, including sizes near those at which scikit-learn changes its sorting algorithm.
PREFIXES = [0, 1, 2, 3, 5, 9, 15, 16, 17, 28, 39]
KINDS = [
    "continuous",
    "discrete",
    "signs",
    "constant inputs",
    "constant outputs",
    "few outputs",
    "skewed",
    "wide outputs",
]


def draw(kind: str, episodes: int = 2, points: int = 40, dim: int = 5) -> Points:
    rng = np.random.default_rng(len(kind))
    x = rng.standard_normal((episodes, points, dim))
    y = x.sum(2) + rng.standard_normal((episodes, points))
    match kind:
        case "discrete":
            x, y = x.round(), y.round()
        case "signs":
            x = np.sign(x)
        case "constant inputs":
            x[:, :, ::2] = 1
        case "constant outputs":
            y = np.full_like(y, 0.3)
        case "few outputs":
            y = np.where(x[:, :, 0] > 0, 1.37, -0.21) + 0.713 * (x[:, :, 1] > 0.3)
        case "skewed":  # some inputs differ by less than scikit-learn's threshold for equal values
            x *= np.logspace(0, -9, dim)
        case "wide outputs":  # float64 does not represent their sums exactly
            y = np.exp(8 * y)
    return Points.full(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(2))


def predict_in_loop(estimator: LibraryEstimator, points: Points, prefixes: list[int]) -> np.ndarray:
    """Return the predictions of the library, fitted separately on each prefix."""
    x, y = estimator.features(points.x).numpy(), points.y[..., 0].numpy()
    answers = np.zeros((len(x), len(prefixes)), np.float32)
    for b in range(len(x)):
        for p, n in enumerate(prefixes):
            if n > 0:
                answers[b, p] = estimator.model().fit(x[b, :n], y[b, :n]).predict(x[b, n : n + 1])[0]
    return answers


@pytest.mark.parametrize("settings", [{"max_depth": 4}, {}, {"max_depth": 2, "random_state": 7}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_bitwise_equal_to_scikit_learn(kind: str, settings: dict[str, int]) -> None:
    points, estimator = draw(kind), GreedyTree(TreeSettings(**settings))
    prediction = estimator.predict_next(points, prefixes=PREFIXES).mean[..., 0].numpy()
    np.testing.assert_array_equal(prediction, predict_in_loop(estimator, points, PREFIXES))


@pytest.mark.parametrize("name", ["xgboost", "xgboost-default", "xgboost-sign"])
@pytest.mark.parametrize("kind", KINDS)
def test_boosting_is_bitwise_equal_to_xgboost(kind: str, name: str) -> None:
    points, card = draw(kind), load_baseline(name)[1]
    estimator = XGBoost(validate(BoostingSettings, card.settings, name))
    prefixes = [0, 1, 2, 9, 39]
    prediction = estimator.predict_next(points, prefixes=prefixes).mean[..., 0].numpy()
    np.testing.assert_array_equal(prediction, predict_in_loop(estimator, points, prefixes))


def test_gains_are_rounded_as_in_xgboost() -> None:
    """In about one fit in a thousand, rounding decides between two nearly equal splits."""
    from xgboost import XGBRegressor

    rng = np.random.default_rng(0)
    for _ in range(20):
        y = rng.standard_normal(6).astype(np.float32)
        x = np.array([[0], [0], [1], [1], [1], [1]], np.float32)
        model = XGBRegressor(n_estimators=1, max_depth=1, base_score=0.0, n_jobs=1).fit(x, y)
        tree = json.loads(model.get_booster().save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][0]
        left, right = -y[:2].astype(np.float64).sum(), -y[2:].astype(np.float64).sum()
        gain = compiled_boosting._gain
        expected = np.float32(gain(left, 2)) + np.float32(gain(right, 4)) - np.float32(gain(left + right, 6))
        if len(tree["loss_changes"]) > 1:
            assert expected == np.float32(tree["loss_changes"][0])


def test_the_base_score_is_rounded_as_in_xgboost() -> None:
    rng = np.random.default_rng(0)
    while True:  # repeat until the order of division and addition changes the result
        y = (4 * rng.standard_normal(30)).astype(np.float32)
        terms = y.astype(np.float64)
        mean = np.float32(np.cumsum(terms / 30)[-1])
        if mean not in (np.float32(np.cumsum(terms)[-1] / 30), np.float32(np.cumsum(terms * (1 / 30))[-1])):
            break
    points = Points.full(torch.zeros(1, 31, 1), torch.tensor([*y, 0.0])[None, :, None])
    estimator = XGBoost(BoostingSettings(n_estimators=1))
    assert estimator.predict_next(points, prefixes=[30]).mean.item() == predict_in_loop(estimator, points, [30])[0, 0]


@pytest.mark.parametrize(
    "estimator", [GreedyTree(), XGBoost(BoostingSettings(n_estimators=5))], ids=["tree", "boosted"]
)
def test_prefixes_of_more_than_128_points_are_fitted_by_the_library(
    estimator: LibraryEstimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, prefixes = draw("continuous", episodes=1, points=131, dim=3), [20, 127, 128, 129, 130]
    job_lengths: list[np.ndarray] = []
    original = trees.map_episodes

    def map_episodes(function, jobs, seconds):
        job_lengths.extend(lengths for *_, lengths, _ in jobs)
        return original(function, jobs, seconds)

    monkeypatch.setattr(trees, "map_episodes", map_episodes)
    prediction = estimator.predict_next(points, prefixes=prefixes).mean[..., 0].numpy()
    np.testing.assert_array_equal(prediction, predict_in_loop(estimator, points, prefixes))
    assert [n for lengths in job_lengths for n in lengths if n > 0] == [129, 130]


def test_contexts_may_have_masked_points_or_be_empty() -> None:
    points = draw("discrete")
    mask = torch.rand(points.mask.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    masked = Points(points.x, points.y, mask)
    for cls in (GreedyTree, XGBoost):
        prediction = cls().predict_next(masked, prefixes=[0, 30]).mean
        assert not prediction[:, 0].any()
        for b in range(len(points)):
            valid = mask[b, :30]
            context = Points.full(points.x[b : b + 1, :30][:, valid], points.y[b : b + 1, :30][:, valid])
            assert torch.equal(cls().predict_targets(context, points.x[b : b + 1, 30:31]).mean[0, 0], prediction[b, 1])


@pytest.mark.slow
@pytest.mark.parametrize("cls", [GreedyTree, XGBoost])
def test_predictions_are_the_same_without_numba(
    cls: type[LibraryEstimator], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = draw("few outputs")
    expected = cls().predict_next(points, prefixes=PREFIXES).mean
    for module in ("compiled_trees", "compiled_boosting"):
        monkeypatch.setitem(sys.modules, f"iclbench.estimators.{module}", None)
    trees._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(cls().predict_next(points, prefixes=PREFIXES).mean, expected)
        cls().predict_next(points, prefixes=PREFIXES)
    assert ["numba" in record.message for record in caplog.records] == [True]


def test_models_with_settings_that_are_not_compiled_are_fitted_by_the_library() -> None:
    """The compiled code supports only the settings of the cards."""
    points = draw("continuous")
    for changed in ({"reg_lambda": 2.0}, {"tree_method": "exact"}, {"min_child_weight": 3.0}, {"max_bin": 8}):
        estimator = XGBoost(BoostingSettings(n_estimators=5, **changed))
        prediction = estimator.predict_next(points, prefixes=[30]).mean[..., 0].numpy()
        np.testing.assert_array_equal(prediction, predict_in_loop(estimator, points, [30]))
        assert not np.array_equal(prediction, predict_in_loop(XGBoost(BoostingSettings(n_estimators=5)), points, [30]))


def test_functions_without_a_source_file_are_compiled_without_a_cache() -> None:
    namespace: dict[str, object] = {}
    exec("def double(x):\n    return 2 * x", namespace)  # a function without a source file has no cache folder
    assert compiled(namespace["double"])(21) == 42  # type: ignore[arg-type]


def test_predictions_are_the_same_without_a_writable_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = draw("continuous")
    expected = GreedyTree().predict_next(points).mean
    error = OSError(28, "No space left on device")
    monkeypatch.setattr(trees, "answer_compiled", lambda *arrays: (_ for _ in ()).throw(error))
    trees._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(GreedyTree().predict_next(points).mean, expected)
    assert "No space left on device" in caplog.text


def test_predictions_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    points = draw("continuous", episodes=5)
    expected = GreedyTree().predict_next(points).mean
    monkeypatch.setenv("ICLBENCH_WORKERS", "3")
    monkeypatch.setattr(trees, "_EPISODES_PER_CALL", 1)
    assert torch.equal(GreedyTree().predict_next(points).mean, expected)
