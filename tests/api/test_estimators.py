"""Runs as scikit-learn estimators."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from iclbench import InContextClassifier, InContextRegressor
from iclbench.config.runs import Run


def failures(estimator: object) -> list[str]:
    from sklearn.utils.estimator_checks import check_estimator

    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(found) > 40
    return [f"{each['check_name']}: {each['exception']}" for each in found if each["status"] == "failed"]


def test_the_regressor_passes_every_check_of_scikit_learn(run: Run) -> None:
    assert failures(InContextRegressor(run)) == []


def test_the_classifier_passes_every_check_of_scikit_learn(classes: Run) -> None:
    assert failures(InContextClassifier(classes)) == []


def test_they_work_in_pipelines_and_cross_validation(run: Run, classes: Run) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6))
    y = 3 + 2 * X[:, 0]
    scores = cross_val_score(make_pipeline(StandardScaler(), InContextRegressor(run)), X, y, cv=3)
    assert np.isfinite(scores).all()
    X, labels = make_blobs(60, 6, centers=3, random_state=0)
    names = np.array(["a", "b", "c"])[labels]
    classifier = InContextClassifier(classes, n_contexts=2)
    assert np.isfinite(cross_val_score(classifier, X, names, cv=3)).all()
    assert set(classifier.fit(X, names).predict(X)) <= {"a", "b", "c"}
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1)


def test_outputs_have_the_scale_of_the_training_set_and_spreads_are_positive(run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(15, 10)), rng.normal(size=15)
    plain, scaled = (InContextRegressor(run).fit(X, a * y + b) for a, b in ((1.0, 0.0), (1000.0, 5.0)))
    mean, std = scaled.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 1000 * plain.predict(X) + 5, rtol=1e-3, atol=1)
    assert (std > 0).all()


def test_outputs_whose_squares_are_not_finite_are_taken(run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(15, 10)), rng.normal(size=15)
    plain, huge = (InContextRegressor(run).fit(X, a * y).predict(X) for a in (1.0, 2.0**900))
    np.testing.assert_array_equal(huge / 2.0**900, plain)


def test_columns_in_another_order_are_refused_as_by_others(run: Run) -> None:
    X = pd.DataFrame(np.random.default_rng(1).normal(size=(15, 3)), columns=["a", "b", "c"])
    model = InContextRegressor(run).fit(X, X["a"])
    assert model.predict(X).shape == (15,)
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(X[["b", "a", "c"]])
    numbered = X.set_axis([0, 1, 2], axis=1)
    model = InContextRegressor(run).fit(numbered, X["a"])
    np.testing.assert_array_equal(model.predict(numbered), model.predict(X.to_numpy()))
    with pytest.raises(ValueError, match="X has 1 where fit was given 0"):
        model.predict(numbered[[1, 0, 2]])


def test_more_features_classes_or_the_other_kind_of_run_are_refused(run: Run, classes: Run) -> None:
    X, y = np.zeros((4, 11)), np.arange(4.0)
    with pytest.raises(ValueError, match="11 features, and the run was trained on 10"):
        InContextRegressor(run).fit(X, y)
    with pytest.raises(ValueError, match="use InContextClassifier"):
        InContextRegressor(classes).fit(X[:, :5], y)
    with pytest.raises(ValueError, match="use InContextRegressor"):
        InContextClassifier(run).fit(X[:, :5], [0, 1, 0, 1])
    with pytest.raises(ValueError, match="6 classes, and the run was trained on 5"):
        InContextClassifier(classes).fit(np.zeros((6, 5)), np.arange(6))
    with pytest.raises(ValueError, match="give a finished run"):
        InContextRegressor().fit(X[:, :5], y)
    for number in (0, 1.5, "a"):
        with pytest.raises(ValueError, match="n_contexts"):
            InContextRegressor(run, n_contexts=number).fit(X[:, :5], y)
