"""Trees and boosting at every prefix: equal to scikit-learn and XGBoost to the last bit, ties included."""

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

# Around where scikit-learn changes its way of sorting; 40 in all.
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
        case "skewed":  # some coordinates differ by less than scikit-learn takes for a difference
            x *= np.logspace(0, -9, dim)
        case "wide outputs":  # sums of which float64 does not hold exactly
            y = np.exp(8 * y)
    return Points.full(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(2))


def looped(estimator: LibraryEstimator, points: Points, prefixes: list[int]) -> np.ndarray:
    """The library alone, prefix by prefix."""
    x, y = estimator.features(points.x).numpy(), points.y[..., 0].numpy()
    answers = np.zeros((len(x), len(prefixes)), np.float32)
    for b in range(len(x)):
        for p, n in enumerate(prefixes):
            if n > 0:
                answers[b, p] = estimator.model().fit(x[b, :n], y[b, :n]).predict(x[b, n : n + 1])[0]
    return answers


@pytest.mark.parametrize("settings", [{"max_depth": 4}, {}, {"max_depth": 2, "random_state": 7}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_trees_equal_scikit_learn_to_the_last_bit(kind: str, settings: dict[str, int]) -> None:
    points, estimator = draw(kind), GreedyTree(TreeSettings(**settings))
    found = estimator.predict_next(points, prefixes=PREFIXES).mean[..., 0].numpy()
    np.testing.assert_array_equal(found, looped(estimator, points, PREFIXES))


@pytest.mark.parametrize("name", ["xgboost", "xgboost-default", "xgboost-sign"])
@pytest.mark.parametrize("kind", KINDS)
def test_boosting_equals_xgboost_to_the_last_bit(kind: str, name: str) -> None:
    points, card = draw(kind), load_baseline(name)[1]
    estimator = XGBoost(validate(BoostingSettings, card.settings, name))
    asked = [0, 1, 2, 9, 39]
    found = estimator.predict_next(points, prefixes=asked).mean[..., 0].numpy()
    np.testing.assert_array_equal(found, looped(estimator, points, asked))


def test_gains_are_rounded_as_xgboost_rounds_them() -> None:
    """Which of two nearly equal splits is taken hangs on it, once in some thousand fits."""
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


def test_the_base_score_is_rounded_as_xgboost_rounds_it() -> None:
    rng = np.random.default_rng(0)
    while True:  # until the order of dividing and adding shows
        y = (4 * rng.standard_normal(30)).astype(np.float32)
        terms = y.astype(np.float64)
        mean = np.float32(np.cumsum(terms / 30)[-1])
        if mean not in (np.float32(np.cumsum(terms)[-1] / 30), np.float32(np.cumsum(terms * (1 / 30))[-1])):
            break
    points = Points.full(torch.zeros(1, 31, 1), torch.tensor([*y, 0.0])[None, :, None])
    estimator = XGBoost(BoostingSettings(n_estimators=1))
    assert estimator.predict_next(points, prefixes=[30]).mean.item() == looped(estimator, points, [30])[0, 0]


@pytest.mark.parametrize(
    "estimator", [GreedyTree(), XGBoost(BoostingSettings(n_estimators=5))], ids=["tree", "boosted"]
)
def test_the_library_takes_over_beyond_128_points(estimator: LibraryEstimator, monkeypatch: pytest.MonkeyPatch) -> None:
    points, asked = draw("continuous", episodes=1, points=131, dim=3), [20, 127, 128, 129, 130]
    given: list[np.ndarray] = []
    over_episodes = trees.over_episodes
    monkeypatch.setattr(
        trees, "over_episodes", lambda f, jobs, s: (given.extend(j[3] for j in jobs), over_episodes(f, jobs, s))[1]
    )
    found = estimator.predict_next(points, prefixes=asked).mean[..., 0].numpy()
    np.testing.assert_array_equal(found, looped(estimator, points, asked))
    assert [n for lengths in given for n in lengths if n > 0] == [129, 130]


def test_points_behind_a_mask_and_an_empty_context() -> None:
    points = draw("discrete")
    mask = torch.rand(points.mask.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    masked = Points(points.x, points.y, mask)
    for make in (GreedyTree, XGBoost):
        found = make().predict_next(masked, prefixes=[0, 30]).mean
        assert not found[:, 0].any()
        for b in range(len(points)):
            seen = mask[b, :30]
            alone = Points.full(points.x[b : b + 1, :30][:, seen], points.y[b : b + 1, :30][:, seen])
            assert torch.equal(make().predict_targets(alone, points.x[b : b + 1, 30:31]).mean[0, 0], found[b, 1])


@pytest.mark.parametrize("make", [GreedyTree, XGBoost])
def test_answers_do_not_depend_on_numba_being_there(
    make: type[LibraryEstimator], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = draw("few outputs")
    expected = make().predict_next(points, prefixes=PREFIXES).mean
    for module in ("compiled_trees", "compiled_boosting"):
        monkeypatch.setitem(sys.modules, f"iclbench.estimators.{module}", None)
    trees._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(make().predict_next(points, prefixes=PREFIXES).mean, expected)
        make().predict_next(points, prefixes=PREFIXES)
    assert [record.message.endswith("(pip install -U numba)") for record in caplog.records] == [True]


def test_other_settings_of_the_library_are_its_own() -> None:
    """Only what the cards pin is compiled."""
    points = draw("continuous")
    for other in ({"reg_lambda": 2.0}, {"tree_method": "exact"}, {"min_child_weight": 3.0}, {"max_bin": 8}):
        estimator = XGBoost(BoostingSettings(n_estimators=5, **other))
        found = estimator.predict_next(points, prefixes=[30]).mean[..., 0].numpy()
        np.testing.assert_array_equal(found, looped(estimator, points, [30]))
        assert not np.array_equal(found, looped(XGBoost(BoostingSettings(n_estimators=5)), points, [30]))


def test_code_is_compiled_where_no_folder_can_keep_it() -> None:
    space: dict[str, object] = {}
    exec("def double(x):\n    return 2 * x", space)  # a function without a file has no folder
    assert compiled(space["double"])(21) == 42  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = draw("continuous")
    expected = GreedyTree().predict_next(points).mean
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(trees, "answer_compiled", lambda *arrays: (_ for _ in ()).throw(full))
    trees._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(GreedyTree().predict_next(points).mean, expected)
    assert "No space left on device" in caplog.text


def test_threads_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    points = draw("continuous", episodes=5)
    alone = GreedyTree().predict_next(points).mean
    monkeypatch.setenv("ICLBENCH_WORKERS", "3")
    monkeypatch.setattr(trees, "_EPISODES", 1)
    assert torch.equal(GreedyTree().predict_next(points).mean, alone)
