"""Runs used as scikit-learn estimators: scikit-learn's checks, invariances, context sizes and input types."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.datasets import make_blobs
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import iclbench as icl
from iclbench import ContextSizeWarning, InContextClassifier, InContextRegressor, UnreadCellsWarning
from iclbench.store.runs import Run


def failures(estimator: object, expected: dict[str, str] | None = None) -> list[str]:
    from sklearn.utils.estimator_checks import check_estimator

    checks = check_estimator(estimator, on_fail=None, on_skip=None, expected_failed_checks=expected)
    assert len(checks) > 40
    return [f"{check['check_name']}: {check['exception']}" for check in checks if check["status"] == "failed"]


@pytest.mark.filterwarnings("ignore::iclbench.ContextSizeWarning")
def test_the_regressor_passes_the_checks_of_scikit_learn(run: Run) -> None:
    assert failures(InContextRegressor(run)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::iclbench.ContextSizeWarning")
def test_a_causal_regressor_passes_the_checks_of_scikit_learn(causal_run: Run) -> None:
    assert failures(InContextRegressor(causal_run)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::iclbench.ContextSizeWarning")
def test_the_classifier_passes_the_checks_of_scikit_learn(classifier_run: Run) -> None:
    assert failures(InContextClassifier(classifier_run)) == []


EXPECTED_FAILED_CHECKS = dict.fromkeys(
    ("check_methods_subset_invariance", "check_methods_sample_order_invariance"),
    "models compute in float32, and their rounding errors depend on the number and the order of the rows in a call; "
    "the tolerances of these checks are 1e-7 and 1e-9",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::iclbench.ContextSizeWarning")
@pytest.mark.parametrize("cls", [InContextRegressor, InContextClassifier])
def test_estimators_without_a_run_pass_the_checks_of_scikit_learn(cls: type) -> None:
    assert failures(cls(), EXPECTED_FAILED_CHECKS) == []


def test_predictions_of_subsets_differ_only_by_the_rounding_of_float32() -> None:
    X = np.random.default_rng(0).normal(size=(12, 3))
    regressor = InContextRegressor().fit(X, X[:, 0])
    together, alone = regressor.predict(X[:4]), np.concatenate([regressor.predict(x[None]) for x in X[:4]])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    regressor.trained_.model.double()
    together, alone = regressor.predict(X[:4]), np.concatenate([regressor.predict(x[None]) for x in X[:4]])
    np.testing.assert_allclose(together, alone, atol=1e-12)


@pytest.mark.filterwarnings("ignore::iclbench.ContextSizeWarning")
def test_estimators_work_in_pipelines_and_cross_validation(run: Run, classifier_run: Run) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6))
    y = 3 + 2 * X[:, 0]
    scores = cross_val_score(make_pipeline(StandardScaler(), InContextRegressor(run)), X, y, cv=3)
    assert np.isfinite(scores).all()
    X, labels = make_blobs(60, 6, centers=3, random_state=0)
    names = np.array(["a", "b", "c"])[labels]
    classifier = InContextClassifier(classifier_run, n_contexts=2)
    assert np.isfinite(cross_val_score(classifier, X, names, cv=3)).all()
    assert set(classifier.fit(X, names).predict(X)) <= {"a", "b", "c"}
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1)


TARGETS = {
    "varied": np.random.default_rng(1).normal(size=15),
    "constant": np.full(15, 0.1),
    "zero": np.zeros(15),
    "one row": np.array([0.3]),
    "two values": np.array([7.0, 7.5]),
    "nearly constant": 1.0 + 1e-9 * np.arange(15),
}


@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("c", [2.0**-60, 1e-6, 3.7, 1e9, 1e200])
def test_predictions_scale_with_the_unit_of_targets(run: Run, y: np.ndarray, c: float) -> None:
    """predict(c * y) == c * predict(y), and standard deviations scale with c."""
    X = np.random.default_rng(2).normal(size=(len(y), 10))
    queries = np.random.default_rng(3).normal(size=(4, 10))
    plain, scaled = (InContextRegressor(run).fit(X, a * y).predict(queries, return_std=True) for a in (1.0, c))
    atol = 1e-6 * c * y.std()  # allows for rounding errors of single precision
    np.testing.assert_allclose(scaled[0], c * plain[0], rtol=1e-14, atol=atol)
    np.testing.assert_allclose(scaled[1], c * plain[1], rtol=1e-6, atol=atol)


@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
def test_predictions_shift_with_the_origin_of_targets(run: Run, y: np.ndarray) -> None:
    """predict(y + b) == predict(y) + b, and standard deviations do not change."""
    X = np.random.default_rng(2).normal(size=(len(y), 10))
    plain, moved = (InContextRegressor(run).fit(X, y + b).predict(X, return_std=True) for b in (0.0, -3.0))
    atol = 1e-5 * y.std() + 1e-14
    np.testing.assert_allclose(moved[0], plain[0] - 3.0, rtol=1e-14, atol=atol)
    np.testing.assert_allclose(moved[1], plain[1], rtol=1e-5, atol=atol)


def test_predictions_do_not_depend_on_units_and_origins_of_features(run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y, queries = rng.normal(size=(15, 3)), rng.normal(size=15), rng.normal(size=(4, 3))
    unit, origin = np.array([1e-200, 7.0, 1e200]), np.array([1e-199, -30.0, 2e201])
    plain = InContextRegressor(run).fit(X, y).predict(queries)
    moved = InContextRegressor(run).fit(unit * X + origin, y).predict(unit * queries + origin)
    np.testing.assert_allclose(moved, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 15])
def test_constant_targets_are_predicted_exactly(run: Run, rows: int) -> None:
    rng = np.random.default_rng(1)
    model = InContextRegressor(run).fit(rng.normal(size=(rows, 10)), np.full(rows, 1e-7))
    mean, std = model.predict(rng.normal(size=(4, 10)), return_std=True)
    assert mean.tolist() == [1e-7] * 4
    assert std.tolist() == [0.0] * 4


def test_standard_deviations_are_positive(run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(15, 10)), rng.normal(size=15)
    assert (InContextRegressor(run).fit(X, y).predict(X, return_std=True)[1] > 0).all()


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_a_feature_that_is_constant_in_the_training_set_has_no_effect(run: Run, constant: float) -> None:
    rng = np.random.default_rng(1)
    X, y, queries = rng.normal(size=(15, 3)), rng.normal(size=15), rng.normal(size=(4, 3))
    X[:, 2], queries[:, 2] = constant, constant
    model = InContextRegressor(run).fit(X, y)
    changed_queries = queries.copy()
    changed_queries[:, 2] += [1.0, -1.0, 1e300, 0.0]
    np.testing.assert_array_equal(model.predict(changed_queries), model.predict(queries))


def test_a_training_set_larger_than_the_context_causes_one_warning(causal_run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(21, 4)), rng.normal(size=21)
    with pytest.warns(ContextSizeWarning, match=r" 20 of the 21 rows.*task\.points=21") as caught:
        model = InContextRegressor(causal_run, n_contexts=3, n_permutations=1).fit(X, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert [len(set(member.rows)) for member in model.model_.members] == [20] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)
        InContextRegressor(causal_run).fit(X[:20], y[:20])


def test_a_run_trained_with_as_many_points_as_there_are_rows_uses_all_rows(tmp_path: Path) -> None:
    """The message of `ContextSizeWarning` recommends training such a run."""
    task = icl.task("linear", preset="smoke", points=40)
    long_run = icl.train(task, "gpt2", results=tmp_path, steps=1, progress=False)
    X, y = np.eye(40, 2), np.arange(40.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = InContextRegressor(long_run).fit(X, y)
    assert {len(member.rows) for member in model.model_.members} == {40}


def test_a_set_model_uses_up_to_a_thousand_rows_per_context(run: Run) -> None:
    X = np.random.default_rng(1).normal(size=(1500, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = InContextRegressor(run).fit(X[:1000], X[:1000, 0])
    assert [len(member.rows) for member in model.model_.members] == [1000]
    assert "20 rows" in model.remarks_[0], "the remark names the size of contexts in training"
    with pytest.warns(ContextSizeWarning, match="1000 of the 1500 rows"):
        model = InContextRegressor(run, n_contexts=2).fit(X, X[:, 0])
    assert [len(member.rows) for member in model.model_.members] == [1000, 1000]
    assert np.isfinite(model.predict(X)).all()


def test_predictions_of_a_causal_model_are_means_over_orders_of_the_rows(causal_run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y, queries = rng.normal(size=(12, 4)), rng.normal(size=12), rng.normal(size=(5, 4))
    by_order = {n: InContextRegressor(causal_run, n_permutations=n).fit(X, y) for n in (1, 3)}
    orders = [member.rows for member in by_order[3].model_.members]
    expected = [
        InContextRegressor(causal_run, n_permutations=1).fit(X[rows], y[rows]).predict(queries) for rows in orders
    ]
    np.testing.assert_allclose(by_order[3].predict(queries), np.mean(expected, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(by_order[1].predict(queries), expected[0], "the given order comes first")
    assert len(InContextRegressor(causal_run).fit(X, y).model_.members) == 4


def test_random_columns_are_selected_if_there_are_more_than_in_training(causal_run: Run) -> None:
    X = np.random.default_rng(1).normal(size=(15, 10))
    with pytest.warns(ContextSizeWarning, match="4 of the 10 encoded columns"):
        model = InContextRegressor(causal_run, n_permutations=1).fit(X, X[:, 0])
    columns = [member.columns for member in model.model_.members]
    assert all(len(set(selection)) == 4 for selection in columns)
    assert set(np.concatenate(columns)) == set(range(10)), "every column is read"
    same_model = InContextRegressor(causal_run, n_permutations=1)
    with pytest.warns(ContextSizeWarning):
        np.testing.assert_array_equal(same_model.fit(X, X[:, 0]).predict(X), model.predict(X))
    with pytest.warns(ContextSizeWarning):
        wide = InContextRegressor(causal_run).fit(np.tile(X, 50), X[:, 0])
    assert len(wide.model_.members) == 16 and wide.predict(np.tile(X, 50)).shape == (15,)


SMALL = {"layers": 1, "width": 8, "heads": 2, "hidden": 8}


def test_the_backbone_cells_can_use_more_columns_than_in_training(tmp_path: Path) -> None:
    task = icl.task("linear", preset="smoke", dim=2, head="gaussian")
    cells = icl.train(task, "cells", results=tmp_path, steps=2, progress=False, settings=SMALL)
    rng = np.random.default_rng(1)
    X, y, queries = rng.normal(size=(12, 7)), rng.normal(size=12), rng.normal(size=(3, 7))
    model = InContextRegressor(cells).fit(X, y)
    assert [len(member.columns) for member in model.model_.members] == [7]
    reordered = InContextRegressor(cells).fit(X[:, ::-1], y).predict(queries[:, ::-1])
    np.testing.assert_allclose(model.predict(queries), reordered, rtol=1e-4, atol=1e-5)
    with pytest.warns(ContextSizeWarning, match="100 of the 210 encoded columns"):
        wide = InContextRegressor(cells).fit(np.tile(X, 30), y)
    assert np.isfinite(wide.predict(np.tile(queries, 30))).all()


def test_probabilities_of_a_set_model_are_means_over_orders_of_the_classes(classifier_run: Run) -> None:
    X, y = make_blobs(30, 6, centers=3, cluster_std=6.0, random_state=0)
    model = InContextClassifier(classifier_run, n_permutations=5).fit(X, y)
    orders = [member.labels for member in model.model_.members]
    assert [sorted(order) for order in orders] == [[0, 1, 2]] * 5 and len({tuple(order) for order in orders}) > 1
    single = InContextClassifier(classifier_run, n_permutations=1)
    np.testing.assert_array_equal(orders[0], [0, 1, 2], "the sorted order comes first")
    expected = [
        single.fit(X[member.rows], order[y[member.rows]]).predict_proba(X)[:, order]
        for member, order in zip(model.model_.members, orders, strict=True)
    ]
    np.testing.assert_allclose(model.predict_proba(X), np.mean(expected, 0), rtol=1e-4, atol=1e-6)
    assert np.abs(expected[0] - expected[1]).max() > 1e-4, "the order has an effect"


@pytest.mark.parametrize("level", [0, 1, 1.5, "0.9", np.nan])
def test_the_level_of_intervals_is_a_probability(run: Run, level: object) -> None:
    X = np.random.default_rng(0).normal(size=(15, 3))
    with pytest.raises(ValueError, match="level="):
        InContextRegressor(run).fit(X, X[:, 0]).predict_interval(X, level)  # type: ignore[arg-type]


def test_cells_that_cannot_be_read_cause_a_warning(run: Run) -> None:
    X = pd.DataFrame({"size": np.arange(15.0) ** 2, "colour": ["red", "blue", "red"] * 5})
    model = InContextRegressor(run).fit(X, X["size"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)
    with pytest.warns(UnreadCellsWarning, match="size.*'much'.*colour.*'green'") as caught:
        model.predict(pd.DataFrame({"size": ["much"], "colour": ["green"]}))
    assert caught[0].filename == __file__


def mixed_table(rows: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "size": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
            "colour": rng.choice(["red", "blue", None], rows),
            "day": rng.choice(["2020-01-01", "2021-06-30"], rows),
            "new": rng.random(rows) < 0.5,
        }
    )


def test_frames_may_have_categories_dates_and_missing_values(run: Run, classifier_run: Run) -> None:
    X = mixed_table()
    y = X["new"] + 0.1 * np.arange(len(X))
    regressor = InContextRegressor(run).fit(X, y)
    assert list(regressor.feature_names_in_) == list(X.columns) and regressor.n_features_in_ == 4
    assert regressor.encoder_.names == ("size", "size is missing", "colour", "colour is missing", "day", "new")
    assert np.isfinite(regressor.predict(X)).all()
    classifier = InContextClassifier(classifier_run).fit(X, X["day"])
    with pytest.warns(UnreadCellsWarning):
        probabilities = classifier.predict_proba(X.assign(colour="green", size=np.inf))
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert set(classifier.predict(X)) <= {"2020-01-01", "2021-06-30"}
    objects = X.to_numpy(object)
    np.testing.assert_allclose(
        InContextRegressor(run).fit(objects, y).predict(objects), regressor.predict(X), rtol=1e-4, atol=1e-5
    )


def test_intervals_equal_those_of_the_predicted_distribution(run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(15, 10)), 1e9 * (3 + rng.normal(size=15))
    model = InContextRegressor(run).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    centre, low, high = model.predict_interval(X, 0.9)
    np.testing.assert_allclose(centre, mean)
    np.testing.assert_allclose(high - mean, norm.ppf(0.95) * std, rtol=1e-4)
    np.testing.assert_allclose(mean - low, norm.ppf(0.95) * std, rtol=1e-4)
    assert (model.predict_interval(X, 0.5)[2] < high).all()


@pytest.mark.parametrize(
    ("estimator", "shape", "names"),
    [
        (InContextClassifier, {"x_shape": (2, 5)}, "images.*icl.predict"),
        (InContextRegressor, {"x_shape": (2, 5)}, "images.*icl.predict"),
        (InContextClassifier, {"marks": 3}, "events.*icl.next_event"),
        (InContextRegressor, {"y_dim": 3}, "3 outputs.*icl.predict"),
    ],
)
def test_runs_whose_inputs_are_not_feature_vectors_are_refused(
    run: Run, classifier_run: Run, estimator: type, shape: dict, names: str
) -> None:
    trained = icl.load(run if estimator is InContextRegressor else classifier_run)
    trained.model.shape = replace(trained.model.shape, **shape)
    with pytest.raises(ValueError, match=names):
        estimator(trained).fit(np.eye(4), [0, 1, 0, 1])


def test_outputs_whose_squares_overflow_are_predicted(run: Run) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(15, 10)), rng.normal(size=15)
    plain, huge = (InContextRegressor(run).fit(X, a * y).predict(X) for a in (1.0, 2.0**900))
    np.testing.assert_array_equal(huge / 2.0**900, plain)


def test_columns_in_another_order_are_refused(run: Run) -> None:
    X = pd.DataFrame(np.random.default_rng(1).normal(size=(15, 3)), columns=["a", "b", "c"])
    model = InContextRegressor(run).fit(X, X["a"])
    assert model.predict(X).shape == (15,)
    with pytest.raises(ValueError, match="feature names"):  # scikit-learn raises this error
        model.predict(X[["b", "a", "c"]])
    numbered = X.set_axis([0, 1, 2], axis=1)
    model = InContextRegressor(run).fit(numbered, X["a"])
    np.testing.assert_array_equal(model.predict(numbered), model.predict(X.to_numpy()))
    with pytest.raises(ValueError, match=r"1 .* 0"):
        model.predict(numbered[[1, 0, 2]])


def test_unsuitable_runs_and_invalid_numbers_of_members_are_refused(run: Run, classifier_run: Run) -> None:
    X, y = np.zeros((4, 5)), np.arange(4.0)
    with pytest.raises(ValueError, match="InContextClassifier"):
        InContextRegressor(classifier_run).fit(X[:, :5], y)
    with pytest.raises(ValueError, match="InContextRegressor"):
        InContextClassifier(run).fit(X[:, :5], [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"6 .* 5"):
        InContextClassifier(classifier_run).fit(np.zeros((6, 5)), np.arange(6))
    with pytest.raises(ValueError, match="n_permutations"):
        InContextRegressor(run, n_permutations=0).fit(X[:, :5], y)
    for number in (0, 1.5, "a"):
        with pytest.raises(ValueError, match="n_contexts"):
            InContextRegressor(run, n_contexts=number).fit(X[:, :5], y)
