"""Classes with the scikit-learn interface as estimators, compared with direct calls of the libraries."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Sum, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVR
from xgboost import XGBClassifier

from iclbench.config.cards import load_baseline
from iclbench.config.resolution import resolve_task
from iclbench.core import trust
from iclbench.core.episodes import Points
from iclbench.core.predictions import Categorical, Gaussian, Point
from iclbench.core.task import TaskFacts
from iclbench.evaluation import contestants
from iclbench.evaluation.prompts import PromptSet
from iclbench.registry import ESTIMATORS
from iclbench.store import identity
from tests.refusals import refused

RNG = np.random.default_rng(0)
X, Q = RNG.normal(size=(3, 40, 4)), RNG.normal(size=(3, 15, 4))
Y = X[..., :1] - X[..., 1:2] ** 2 + 0.1 * RNG.normal(size=(3, 40, 1))
LABELS = np.where(X[..., 0] > 0, 3, np.where(X[..., 1] > 0, 1, 0))  # labels 2 and 4 do not occur


def estimator(target: str, classes: int | None = None, seed: int = 0, **settings: object):
    cls = ESTIMATORS.get(target)
    return cls(cls.Settings(**settings), TaskFacts(classes=classes), seed=seed)


def predict(target: str, y: np.ndarray = Y, classes: int | None = None, **settings: object):
    points = Points.full(torch.from_numpy(X), torch.from_numpy(y))
    return estimator(target, classes, **settings).predict_targets(points, torch.from_numpy(Q))


def predict_directly(model, y: np.ndarray = Y[..., 0]) -> np.ndarray:
    return np.stack([model.fit(X[i], y[i]).predict(Q[i]) for i in range(3)])


@pytest.mark.parametrize(
    ("target", "settings", "model"),
    [
        ("sklearn.svm:SVR", {"C": 3.0}, SVR(C=3.0)),
        ("sklearn.linear_model:Ridge", {}, Ridge()),
        ("sklearn.ensemble:RandomForestRegressor", {"n_estimators": 5}, RandomForestRegressor(5, random_state=0)),
    ],
)
def test_predicted_numbers_agree_with_the_library(target: str, settings: dict, model: object) -> None:
    answer = predict(target, **settings)
    assert isinstance(answer, Point)
    np.testing.assert_allclose(answer.mean[..., 0], predict_directly(model), rtol=1e-10)


@pytest.mark.parametrize(
    ("target", "settings", "model"),
    [
        ("sklearn.linear_model:LogisticRegression", {"C": 0.5}, LogisticRegression(C=0.5)),
        ("sklearn.neighbors:KNeighborsClassifier", {}, KNeighborsClassifier()),
        ("xgboost:XGBClassifier", {"n_estimators": 4}, XGBClassifier(n_estimators=4, n_jobs=1, random_state=0)),
        ("sklearn.ensemble:RandomForestClassifier", {"n_estimators": 5}, RandomForestClassifier(5, random_state=0)),
    ],
)
def test_probabilities_and_log_loss_agree_with_the_library(target: str, settings: dict, model: object) -> None:
    """The library sees the labels in the context, numbered from 0. The two classes without points have the smallest
    probability.
    """
    answer = predict(target, LABELS, classes=5, **settings)
    assert isinstance(answer, Categorical)
    for i in range(3):
        present = np.unique(LABELS[i])
        expected = model.fit(X[i], np.searchsorted(present, LABELS[i])).predict_proba(Q[i])  # type: ignore[attr-defined]
        actual = answer.logits[i].softmax(-1).numpy()
        np.testing.assert_allclose(actual[:, present], expected, atol=1e-6)
        assert (np.delete(actual, present, 1) < 1e-6).all()
        full = np.zeros((15, 5))
        full[:, present] = expected
        clipped = np.clip(full, np.finfo(np.float32).eps, None)
        y = RNG.choice(present, 15)
        losses = answer.loss(torch.from_numpy(np.broadcast_to(y, (3, 15)).copy()))[i]
        normalised = clipped / clipped.sum(1, keepdims=True)
        assert float(losses.mean()) == pytest.approx(log_loss(y, normalised, labels=range(5)), rel=1e-6)


def test_settings_may_contain_objects() -> None:
    kernels = "sklearn.gaussian_process.kernels"
    kernel = {
        "class": f"{kernels}:Sum",
        "k1": {"class": f"{kernels}:RBF", "length_scale": 2.0},
        "k2": {"class": f"{kernels}:WhiteKernel", "noise_level": 0.1},
    }
    answer = predict("sklearn.gaussian_process:GaussianProcessRegressor", kernel=kernel)
    assert isinstance(answer, Gaussian)
    model = GaussianProcessRegressor(Sum(RBF(2.0), WhiteKernel(0.1)), random_state=0)
    for i in range(3):
        mean, std = model.fit(X[i], Y[i, :, 0]).predict(Q[i], return_std=True)
        np.testing.assert_allclose(answer.mean[i, :, 0], mean, rtol=1e-6)
        np.testing.assert_allclose(answer.std[i, :, 0], std, rtol=1e-6)


def test_a_grid_search_runs_in_every_context_even_with_fewer_points_than_folds() -> None:
    settings = {
        "estimator": {"class": "sklearn.neighbors:KNeighborsClassifier"},
        "param_grid": {"n_neighbors": [1, 9]},
        "cv": 3,
    }
    target = "sklearn.model_selection:GridSearchCV"
    model = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 9]}, cv=3)
    np.testing.assert_array_equal(
        predict(target, LABELS, classes=5, **settings).point(), predict_directly(model, LABELS)
    )
    few = Points.full(torch.from_numpy(X[:1, :2]), torch.tensor([[0, 1]]))
    assert estimator(target, 5, **settings).predict_targets(few, torch.from_numpy(Q[:1])).logits.isfinite().all()


def test_contexts_may_have_a_single_class_or_no_points() -> None:
    points = Points.full(torch.from_numpy(X), torch.full((3, 40), 2))
    logistic = estimator("sklearn.linear_model:LogisticRegression", 5)
    answer = logistic.predict_targets(points, torch.from_numpy(Q))
    assert (answer.point() == 2).all() and (answer.logits.softmax(-1)[..., 2] > 0.999).all()
    empty = logistic.predict_targets(points.span(0, 0), torch.from_numpy(Q))
    torch.testing.assert_close(empty.logits.softmax(-1), torch.full((3, 15, 5), 0.2, dtype=torch.float64))
    few = estimator("sklearn.neighbors:KNeighborsClassifier", 5).predict_targets(
        Points.full(torch.from_numpy(X), torch.from_numpy(LABELS)).span(0, 2), torch.from_numpy(Q)
    )
    assert few.logits.isfinite().all()


def test_classifiers_without_probabilities_give_the_predicted_class_a_probability_of_99_percent() -> None:
    answer = predict("sklearn.linear_model:RidgeClassifier", LABELS, classes=5)
    assert torch.isclose(
        answer.logits.softmax(-1).max(-1).values, torch.tensor(0.99, dtype=torch.float64), atol=1e-6
    ).all()


def test_random_estimators_depend_on_the_given_seed() -> None:
    points = Points.full(torch.from_numpy(X), torch.from_numpy(Y))
    target = "sklearn.ensemble:RandomForestRegressor"
    means = [
        estimator(target, seed=seed, n_estimators=3).predict_targets(points, torch.from_numpy(Q)).mean
        for seed in (0, 0, 1)
    ]
    assert torch.equal(means[0], means[1]) and not torch.equal(means[0], means[2])


def test_invalid_settings_and_outputs_are_refused() -> None:
    with refused("unknown-name", "SVR", "c", "C"):
        estimator("sklearn.svm:SVR", c=1.0)
    with refused("not-applicable", "SVR", "class labels"):
        predict("sklearn.svm:SVR", LABELS, classes=5)
    with refused("not-applicable", "SVC", "numbers"):
        predict("sklearn.svm:SVC")


@pytest.mark.parametrize(
    ("task", "target"),
    [("bursty", "sklearn.svm:SVC"), ("recall", "sklearn.svm:SVC"), ("linear-system", "sklearn.svm:SVR")],
)
def test_tasks_whose_inputs_are_not_feature_vectors_are_refused(task: str, target: str) -> None:
    prompts = PromptSet(resolve_task(task, "smoke")[0], "smoke")
    with refused("not-applicable", target):
        contestants.baselines(prompts, [target])


def test_a_class_given_by_its_path_is_a_baseline_with_a_name_and_an_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, card = load_baseline("sklearn.svm:SVR")
    assert name == "sklearn-svm-svr" and card.estimator == "sklearn.svm:SVR"
    path = tmp_path / "svr.toml"
    path.write_text('estimator = "sklearn.svm:SVR"\nsummary = "s"\n[settings]\nC = 2.0\n')
    default, other = (identity.baseline_settings(load_baseline(n)[1]) for n in ("sklearn.svm:SVR", str(path)))
    assert default["settings"] == {} and other["settings"] == {"C": 2.0} and default["code"] == other["code"]
    assert ESTIMATORS.get("sklearn.svm:SVR").libraries == ("scikit-learn",)
    (tmp_path / "own_model.py").write_text(
        "class Own:\n    def fit(self, x, y):\n        self.m = y.mean()\n        return self\n\n"
        "    def predict(self, x):\n        return x[:, 0] * 0 + self.m\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trust.VARIABLE, "")
    with refused("untrusted", "own_model", exit_code=1):
        ESTIMATORS.get("own_model:Own")
    trust.trust("own_model")
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_allclose(predict("own_model:Own").mean[..., 0], np.repeat(Y.mean(1), 15, 1))
    code = identity.baseline_settings(load_baseline("own_model:Own")[1])["code"]
    assert isinstance(code, str) and len(code) == 12, "a user module is identified by its source"
