"""Arrays in, arrays out: equal to what the contract answers, and one line for what does not fit."""

import doctest
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import iclbench as icl
from iclbench.api import predict as module
from iclbench.config.runs import Run
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError

RNG = np.random.default_rng(0)
X, Y, QUERIES = RNG.normal(size=(8, 10)), RNG.normal(size=8), RNG.normal(size=(3, 10))


def test_answers_are_those_of_the_model(run: Run) -> None:
    model = icl.load(run)
    mean, std = model.predict(X, Y, QUERIES, return_std=True)
    points = Points.full(torch.tensor(X).float()[None], torch.tensor(Y).float()[None, :, None])
    with torch.no_grad():
        expected = model.model.predict_targets(points, torch.tensor(QUERIES).float()[None])
    np.testing.assert_array_equal(mean, expected.mean[0, :, 0])
    np.testing.assert_array_equal(std, expected.std[0, :, 0])
    assert mean.shape == std.shape == (3,) and (std > 0).all()
    np.testing.assert_array_equal(icl.predict(run, X, Y, QUERIES), mean)
    np.testing.assert_array_equal(icl.predict(model.model, X, Y, QUERIES), mean)


def test_frames_lists_tensors_and_batches_are_taken(run: Run) -> None:
    mean = icl.predict(run, X, Y, QUERIES)
    frame = pd.DataFrame(X)
    np.testing.assert_array_equal(icl.predict(run, frame, pd.Series(Y), QUERIES.tolist()), mean)
    np.testing.assert_array_equal(icl.predict(run, torch.tensor(X), torch.tensor(Y), torch.tensor(QUERIES)), mean)
    batch = icl.predict(run, np.stack([X, X + 1]), np.stack([Y, Y]), np.stack([QUERIES, QUERIES]))
    assert batch.shape == (2, 3)
    np.testing.assert_allclose(batch[0], mean, atol=1e-5)
    column = icl.predict(run, X, Y[:, None], QUERIES)
    assert column.shape == (3, 1)
    np.testing.assert_array_equal(column[:, 0], mean)


def test_columns_of_frames_stand_in_one_order(run: Run) -> None:
    names = [f"x{i}" for i in range(10)]
    context, queries = pd.DataFrame(X, columns=names), pd.DataFrame(QUERIES, columns=names)
    mean = icl.predict(run, X, Y, QUERIES)
    for fits in (queries, QUERIES, pd.DataFrame(QUERIES)):
        np.testing.assert_array_equal(icl.predict(run, context, Y, fits), mean)
    turned = queries[names[::-1]]
    np.testing.assert_array_equal(icl.predict(run, context, Y, turned[context.columns]), mean)
    for wrong, line in (
        (turned, r"X_query has x9 where X_context has x0: give X_query\[X_context.columns\]"),
        (queries.rename(columns={"x3": "z"}), "X_query has z where X_context has x3: both need the same columns"),
    ):
        with pytest.raises(UsageError, match=line) as error:
            icl.predict(run, context, Y, wrong)
        assert "\n" not in str(error.value)


def test_no_query_sees_another_and_an_empty_context_is_one(run: Run) -> None:
    alone = [icl.predict(run, X, Y, QUERIES[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(icl.predict(run, X, Y, QUERIES), alone, atol=1e-5)
    assert icl.predict(run, X[:0], Y[:0], QUERIES).shape == (3,)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ((X[:, :4], Y, QUERIES), r"X_context has shape \(8, 4\): expected \(points, 10\)"),
        ((X, Y, QUERIES[0]), r"X_query has shape \(10,\)"),
        ((X, Y[:5], QUERIES), r"y_context has shape \(5,\): expected \(8,\) or \(8, 1\)"),
        ((X.astype(str), Y, QUERIES), "X_context: expected an array of numbers"),
        ((X, np.full(8, np.nan), QUERIES), "y_context holds NaN"),
        ((X[None], Y[None], np.stack([QUERIES, QUERIES])), "the same B"),
        ((X[None], Y[None], QUERIES), "both are"),
        (([[1.0], [1.0, 2.0]], Y, QUERIES), "X_context: expected an array of numbers"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Run, arrays: tuple, line: str) -> None:
    with pytest.raises(UsageError, match=line) as error:
        icl.predict(run, *arrays)
    assert "\n" not in str(error.value)


def test_thousands_of_queries_are_answered_in_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = icl.predict(run, X, Y, np.tile(QUERIES, (4, 1)))
    monkeypatch.setattr(module, "_AT_ONCE", 5)
    np.testing.assert_allclose(icl.predict(run, X, Y, np.tile(QUERIES, (4, 1))), whole, atol=1e-5)


def test_answers_that_are_not_finite_are_refused() -> None:
    model = icl.backbone("cnp", icl.task("linear", "smoke", dim=10), width=8)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.inf)  # a sum that overflows does so on some processors alone
    with pytest.raises(UsageError, match="not finite; bring inputs"):
        icl.predict(model, X, Y, QUERIES)


def test_single_values_have_no_spread_and_learned_positions_an_end() -> None:
    task = icl.task("linear", "smoke", dim=10, points=8)
    model = icl.backbone("gpt2-learned", task, layers=1, width=16, heads=2)
    with pytest.raises(UsageError, match="head='gaussian'"):
        icl.predict(model, X, Y, QUERIES, return_std=True)
    with pytest.raises(UsageError, match="X_context has 16 points: it takes in at most 8"):
        icl.predict(model, np.tile(X, (2, 1)), np.tile(Y, 2), QUERIES)
    with pytest.raises(UsageError, match="not str"):
        icl.predict("ridge", X, Y, QUERIES)


def test_classes_are_labels_and_probabilities(classes: Run) -> None:
    labels = np.arange(8) % 5
    trained = icl.load(classes)
    shares = trained.predict_proba(X, labels, QUERIES)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(trained.predict(X, labels, QUERIES), shares.argmax(1))
    for wrong, line in ((labels + 1, "labels from 1 to 5: expected 0 to 4"), (Y, "expected whole numbers")):
        with pytest.raises(UsageError, match=line):
            trained.predict(X, wrong, QUERIES)


def test_a_run_is_found_by_name_folder_and_object(run: Run, results: Path) -> None:
    found = [icl.load(which).model for which in (run, run.path, str(run.path))] + [icl.load("tour", results).model]
    for model in found:
        assert all(map(torch.equal, model.state_dict().values(), found[0].state_dict().values()))
    with pytest.raises(UsageError, match="tour"):
        icl.load("tuor", results)


def test_examples_of_the_documentation_hold() -> None:
    assert doctest.testmod(module).failed == 0
