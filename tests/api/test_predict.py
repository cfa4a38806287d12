"""Arrays in, arrays out: equal to what the contract answers, and one line for what does not fit."""

import copy
import doctest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import iclbench as icl
from iclbench.api import predict as module
from iclbench.backbones.base import Backbone
from iclbench.backbones.cnp import CNP
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.joint import JointGaussian
from iclbench.store.runs import Run

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


def test_frames_of_truths_and_nullable_columns_are_taken_and_what_they_do_not_know_is_not(run: Run) -> None:
    plain = np.column_stack([X[:, 0] > 0, np.arange(8), X[:, 2:]]).astype(float)
    mean = icl.predict(run, plain, np.arange(8.0), QUERIES)
    frame = pd.DataFrame({i: X[:, i] for i in range(10)})
    frame[0], frame[1] = X[:, 0] > 0, pd.array(range(8), dtype="Int64")
    np.testing.assert_array_equal(icl.predict(run, frame, pd.Series(range(8), dtype="Int64"), QUERIES), mean)
    np.testing.assert_array_equal(icl.predict(run, np.ma.masked_array(plain), np.arange(8.0), QUERIES), mean)
    gap = frame.assign()
    gap.loc[3, 1] = pd.NA
    for unknown in (gap, np.ma.masked_array(X, mask=np.isclose(X, X[3, 3]))):
        with pytest.raises(UsageError, match="X_context holds NaN"):
            icl.predict(run, unknown, Y, QUERIES)
    with pytest.raises(UsageError, match=r"X_context: expected an array of numbers \(dtype object\)"):
        icl.predict(run, frame.astype({2: str}), Y, QUERIES)


def test_columns_of_frames_stand_in_one_order(run: Run) -> None:
    names = [f"x{i}" for i in range(10)]
    context, queries = pd.DataFrame(X, columns=names), pd.DataFrame(QUERIES, columns=names)
    mean = icl.predict(run, X, Y, QUERIES)
    for fits in (queries, QUERIES, pd.DataFrame(QUERIES)):
        np.testing.assert_array_equal(icl.predict(run, context, Y, fits), mean)
    turned = queries[names[::-1]]
    np.testing.assert_array_equal(icl.predict(run, context, Y, turned[context.columns]), mean)
    for wrong, line in (
        (turned, r"x9 .* x0 .*X_query\[X_context.columns\]"),
        (queries.rename(columns={"x3": "z"}), "z .* x3 "),
    ):
        with pytest.raises(UsageError, match=line) as error:
            icl.predict(run, context, Y, wrong)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("names", [range(10), range(10, 20), [*range(9), "y"], [0.5 + i for i in range(10)]])
def test_names_of_any_type_stand_in_one_order(run: Run, names: Sequence[Any]) -> None:
    context, queries = pd.DataFrame(X, columns=list(names)), pd.DataFrame(QUERIES, columns=list(names))
    mean = icl.predict(run, X, Y, QUERIES)
    for fits in (queries, QUERIES, pd.DataFrame(QUERIES)):
        np.testing.assert_array_equal(icl.predict(run, context, Y, fits), mean)
    turned = queries[list(names)[::-1]]
    np.testing.assert_array_equal(icl.predict(run, context, Y, turned[context.columns]), mean)
    with pytest.raises(UsageError, match=r"X_query\[X_context.columns\]"):
        icl.predict(run, context, Y, turned)
    with pytest.raises(UsageError, match=r"\bz\b"):
        icl.predict(run, context.rename(columns={names[0]: "a"}), Y, queries.rename(columns={names[0]: "z"}))


def test_no_query_sees_another_and_an_empty_context_is_one(run: Run) -> None:
    alone = [icl.predict(run, X, Y, QUERIES[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(icl.predict(run, X, Y, QUERIES), alone, atol=1e-5)
    assert icl.predict(run, X[:0], Y[:0], QUERIES).shape == (3,)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ((X[:, :4], Y, QUERIES), r"X_context .*\(8, 4\).*\(points, 10\)"),
        ((X, Y, QUERIES[0]), r"X_query .*\(10,\)"),
        ((X, Y[:5], QUERIES), r"y_context .*\(5,\).*\(8,\) .*\(8, 1\)"),
        ((X.astype(str), Y, QUERIES), "X_context"),
        ((X, np.full(8, np.nan), QUERIES), "y_context .*NaN"),
        ((X[None], Y[None], np.stack([QUERIES, QUERIES])), r"X_context \(1, 8, 10\) .*X_query \(2, 3, 10\)"),
        ((X[None], Y[None], QUERIES), r"X_context \(1, 8, 10\) .*X_query \(3, 10\)"),
        (([[1.0], [1.0, 2.0]], Y, QUERIES), "X_context"),
        ((X, [torch.ones(1, requires_grad=True)] * 8, QUERIES), r"y_context.*grad"),
        ((X[None][:0], Y[None][:0], QUERIES[None][:0]), r"X_context .*\(0, 8, 10\)"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Run, arrays: tuple, line: str) -> None:
    with pytest.raises(UsageError, match=line) as error:
        icl.predict(run, *arrays)
    assert "\n" not in str(error.value)


def test_a_model_of_another_precision_answers_in_it(run: Run) -> None:
    model = icl.load(run).model
    narrow = icl.predict(model, X, Y, QUERIES)
    wide = icl.predict(copy.deepcopy(model).double(), X, Y, QUERIES)
    assert (narrow.dtype, wide.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(narrow, wide, atol=1e-5)
    assert not np.array_equal(narrow, wide)
    coarse = copy.deepcopy(model).bfloat16()
    np.testing.assert_allclose(icl.predict(coarse, X, torch.tensor(Y).bfloat16(), QUERIES), narrow, atol=0.1)


def test_thousands_of_queries_are_answered_in_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = icl.predict(run, X, Y, np.tile(QUERIES, (4, 1)))
    monkeypatch.setattr(module, "_QUERIES_PER_PASS", 5)
    np.testing.assert_allclose(icl.predict(run, X, Y, np.tile(QUERIES, (4, 1))), whole, atol=1e-5)


def test_answers_that_are_not_finite_are_refused() -> None:
    model = icl.backbone("cnp", icl.task("linear", "smoke", dim=10), width=8)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.inf)  # a sum that overflows does so on some processors alone
    with pytest.raises(UsageError, match="not finite"):
        icl.predict(model, X, Y, QUERIES)


def test_single_values_have_no_spread_and_learned_positions_an_end() -> None:
    task = icl.task("linear", "smoke", dim=10, points=8)
    model = icl.backbone("gpt2-learned", task, layers=1, width=16, heads=2)
    with pytest.raises(UsageError, match="head='gaussian'"):
        icl.predict(model, X, Y, QUERIES, return_std=True)
    with pytest.raises(UsageError, match=r"X_context has 16 .* 8"):
        icl.predict(model, np.tile(X, (2, 1)), np.tile(Y, 2), QUERIES)
    with pytest.raises(UsageError, match="not str"):
        icl.predict("ridge", X, Y, QUERIES)


def test_classes_are_labels_and_probabilities(classes: Run) -> None:
    labels = np.arange(8) % 5
    trained = icl.load(classes)
    shares = trained.predict_proba(X, labels, QUERIES)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(trained.predict(X, labels, QUERIES), shares.argmax(1))
    asked = trained.predict(torch.tensor(X), torch.tensor(labels), torch.tensor(QUERIES))
    np.testing.assert_array_equal(asked, shares.argmax(1))
    np.testing.assert_array_equal(trained.predict(X, pd.Series(labels, dtype="Int64"), QUERIES), shares.argmax(1))
    assert trained.predict_proba(X[:0], [], QUERIES).shape == (3, 5), "an empty context has no labels of a wrong type"
    with pytest.raises(UsageError, match="predict_proba"):
        trained.predict(X, labels, QUERIES, return_std=True)
    unclear = (
        ([[0], [1, 2]], "y_context"),
        (np.ma.masked_array(labels, mask=labels == 3), "y_context .*NaN"),
    )
    for wrong, line in ((labels + 1, "1 to 5: .*0 to 4"), (Y, "float64"), *unclear):
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


class _Wave(Backbone[CNP.Settings], abstract=True):
    """Knows that all outputs are one number, up to a little noise."""

    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> JointGaussian:
        one = torch.ones_like(x_target)
        return JointGaussian(0 * one, one.unsqueeze(-1), 0.1 * one)


def test_draws_of_a_joint_distribution_are_functions_and_those_of_others_are_not() -> None:
    task = icl.task("gp-mixture", "smoke")
    joint, alone = _Wave(CNP.Settings(), task.shape), icl.CNP(task, width=8)
    x, queries = np.zeros((3, 1)), np.linspace(-1, 1, 7)[:, None]
    together, apart = (icl.sample_y(model, x, np.zeros(3), queries, 200, seed=1) for model in (joint, alone))
    assert together.shape == apart.shape == (200, 7)
    assert np.corrcoef(together.T)[0, 1] > 0.95 and abs(np.corrcoef(apart.T)[0, 1]) < 0.3
    _, std = icl.predict(alone, x, np.zeros(3), queries, return_std=True)
    np.testing.assert_allclose(apart.std(0), std, rtol=0.25)
    np.testing.assert_allclose(icl.predict(joint, x, np.zeros(3), queries, return_std=True)[1], 1.01**0.5, rtol=1e-5)
    again = icl.sample_y(alone, x, np.zeros(3), queries, 200, seed=1)
    np.testing.assert_array_equal(again, apart)
    several = icl.sample_y(alone, np.zeros((2, 3, 1)), np.zeros((2, 3)), np.zeros((2, 4, 1)))
    assert several.shape == (1, 2, 4)
    with pytest.raises(UsageError, match="n_samples"):
        icl.sample_y(alone, x, np.zeros(3), queries, 0)


def test_who_answers_all_queries_together_is_asked_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iclbench.api.predict._QUERIES_PER_PASS", 2)
    asked: list[int] = []

    class Counting(_Wave, abstract=True):
        def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> JointGaussian:
            asked.append(x_target.shape[1])
            return super().predict_targets(context, x_target, related)

    model = Counting(CNP.Settings(), icl.task("gp-mixture", "smoke").shape)
    for joint in ("apart", "exchangeable"):
        model.joint = joint
        icl.predict(model, np.zeros((3, 1)), np.zeros(3), np.zeros((5, 1)))
    assert asked == [2, 2, 1, 5]
