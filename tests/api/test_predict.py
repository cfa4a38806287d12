"""`icl.predict` and `icl.load`: agreement with the model, supported types of inputs, and errors for invalid inputs."""

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
from iclbench.core.joint import JointGaussian
from iclbench.store.runs import Run
from tests.refusals import refused

RNG = np.random.default_rng(0)
X, Y, QUERIES = RNG.normal(size=(8, 10)), RNG.normal(size=8), RNG.normal(size=(3, 10))


def test_predictions_equal_those_of_the_model(run: Run) -> None:
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


def test_inputs_may_be_frames_lists_tensors_and_batches(run: Run) -> None:
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


def test_frames_may_have_boolean_and_nullable_columns_without_missing_values(run: Run) -> None:
    plain = np.column_stack([X[:, 0] > 0, np.arange(8), X[:, 2:]]).astype(float)
    mean = icl.predict(run, plain, np.arange(8.0), QUERIES)
    frame = pd.DataFrame({i: X[:, i] for i in range(10)})
    frame[0], frame[1] = X[:, 0] > 0, pd.array(range(8), dtype="Int64")
    np.testing.assert_array_equal(icl.predict(run, frame, pd.Series(range(8), dtype="Int64"), QUERIES), mean)
    np.testing.assert_array_equal(icl.predict(run, np.ma.masked_array(plain), np.arange(8.0), QUERIES), mean)
    incomplete = frame.assign()
    incomplete.loc[3, 1] = pd.NA
    for inputs in (incomplete, np.ma.masked_array(X, mask=np.isclose(X, X[3, 3]))):
        with refused("bad-value", "X_context", "NaN"):
            icl.predict(run, inputs, Y, QUERIES)
    with refused("bad-value", "X_context", "object"):
        icl.predict(run, frame.astype({2: str}), Y, QUERIES)


def test_frames_must_have_their_columns_in_the_same_order(run: Run) -> None:
    names = [f"x{i}" for i in range(10)]
    context, queries = pd.DataFrame(X, columns=names), pd.DataFrame(QUERIES, columns=names)
    mean = icl.predict(run, X, Y, QUERIES)
    for inputs in (queries, QUERIES, pd.DataFrame(QUERIES)):
        np.testing.assert_array_equal(icl.predict(run, context, Y, inputs), mean)
    reordered = queries[names[::-1]]
    np.testing.assert_array_equal(icl.predict(run, context, Y, reordered[context.columns]), mean)
    with refused("bad-value", "x9", "x0", "X_query[X_context.columns]"):
        icl.predict(run, context, Y, reordered)
    with refused("bad-value", "z", "x3"):
        icl.predict(run, context, Y, queries.rename(columns={"x3": "z"}))


@pytest.mark.parametrize("names", [range(10), range(10, 20), [*range(9), "y"], [0.5 + i for i in range(10)]])
def test_columns_with_names_of_any_type_must_be_in_the_same_order(run: Run, names: Sequence[Any]) -> None:
    context, queries = pd.DataFrame(X, columns=list(names)), pd.DataFrame(QUERIES, columns=list(names))
    mean = icl.predict(run, X, Y, QUERIES)
    for inputs in (queries, QUERIES, pd.DataFrame(QUERIES)):
        np.testing.assert_array_equal(icl.predict(run, context, Y, inputs), mean)
    reordered = queries[list(names)[::-1]]
    np.testing.assert_array_equal(icl.predict(run, context, Y, reordered[context.columns]), mean)
    with refused("bad-value", "X_query[X_context.columns]"):
        icl.predict(run, context, Y, reordered)
    with refused("bad-value", " z "):
        icl.predict(run, context.rename(columns={names[0]: "a"}), Y, queries.rename(columns={names[0]: "z"}))


def test_predictions_do_not_depend_on_other_queries(run: Run) -> None:
    single_predictions = [icl.predict(run, X, Y, QUERIES[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(icl.predict(run, X, Y, QUERIES), single_predictions, atol=1e-5)


def test_a_context_may_be_empty(run: Run) -> None:
    assert icl.predict(run, X[:0], Y[:0], QUERIES).shape == (3,)


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        ((X[:, :4], Y, QUERIES), ["X_context", (8, 4), "(points, 10)"]),
        ((X, Y, QUERIES[0]), ["X_query", (10,)]),
        ((X, Y[:5], QUERIES), ["y_context", (5,), (8,), (8, 1)]),
        ((X.astype(str), Y, QUERIES), ["X_context"]),
        ((X, np.full(8, np.nan), QUERIES), ["y_context", "NaN"]),
        ((X[None], Y[None], np.stack([QUERIES, QUERIES])), ["X_context", (1, 8, 10), "X_query", (2, 3, 10)]),
        ((X[None], Y[None], QUERIES), ["X_context", (1, 8, 10), "X_query", (3, 10)]),
        (([[1.0], [1.0, 2.0]], Y, QUERIES), ["X_context"]),
        ((X, [torch.ones(1, requires_grad=True)] * 8, QUERIES), ["y_context", "grad"]),
        ((X[None][:0], Y[None][:0], QUERIES[None][:0]), ["X_context", (0, 8, 10)]),
    ],
)
def test_arrays_with_unsuitable_shapes_or_values_are_refused(run: Run, arrays: tuple, names: list[object]) -> None:
    with refused("bad-value", *names):
        icl.predict(run, *arrays)


def test_predictions_have_the_precision_of_the_model(run: Run) -> None:
    model = icl.load(run).model
    single = icl.predict(model, X, Y, QUERIES)
    double = icl.predict(copy.deepcopy(model).double(), X, Y, QUERIES)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, atol=1e-5)
    assert not np.array_equal(single, double)
    bfloat16_model = copy.deepcopy(model).bfloat16()
    np.testing.assert_allclose(icl.predict(bfloat16_model, X, torch.tensor(Y).bfloat16(), QUERIES), single, atol=0.1)


def test_many_queries_are_predicted_in_several_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = icl.predict(run, X, Y, np.tile(QUERIES, (4, 1)))
    monkeypatch.setattr(module, "_QUERIES_PER_PASS", 5)
    np.testing.assert_allclose(icl.predict(run, X, Y, np.tile(QUERIES, (4, 1))), expected, atol=1e-5)


def test_predictions_that_are_not_finite_raise_an_error() -> None:
    model = icl.backbone("cnp", icl.task("linear", "smoke", dim=10), width=8)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.inf)  # large finite weights would overflow only on some processors
    with refused("not-finite"):
        icl.predict(model, X, Y, QUERIES)


def test_requests_that_the_model_cannot_answer_are_refused() -> None:
    task = icl.task("linear", "smoke", dim=10, points=8)
    model = icl.backbone("gpt2-learned", task, layers=1, width=16, heads=2)
    with refused("not-applicable", "return_std", "head='gaussian'"):
        icl.predict(model, X, Y, QUERIES, return_std=True)
    with refused("not-applicable", "X_context", 16, 8):
        icl.predict(model, np.tile(X, (2, 1)), np.tile(Y, 2), QUERIES)
    with refused("bad-value", "model", "str"):
        icl.predict("ridge", X, Y, QUERIES)


def test_classifiers_predict_the_most_probable_labels_and_refuse_invalid_labels(classifier_run: Run) -> None:
    labels = np.arange(8) % 5
    trained = icl.load(classifier_run)
    probabilities = trained.predict_proba(X, labels, QUERIES)
    expected = probabilities.argmax(1)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(trained.predict(X, labels, QUERIES), expected)
    from_tensors = trained.predict(torch.tensor(X), torch.tensor(labels), torch.tensor(QUERIES))
    np.testing.assert_array_equal(from_tensors, expected)
    np.testing.assert_array_equal(trained.predict(X, pd.Series(labels, dtype="Int64"), QUERIES), expected)
    assert trained.predict_proba(X[:0], [], QUERIES).shape == (3, 5), "empty labels may have any type"
    with refused("not-applicable", "return_std", "predict_proba"):
        trained.predict(X, labels, QUERIES, return_std=True)
    for outputs, names in (
        (labels + 1, ["1 to 5", "0 to 4"]),
        (Y, ["float64"]),
        ([[0], [1, 2]], []),
        (np.ma.masked_array(labels, mask=labels == 3), ["NaN"]),
    ):
        with refused("bad-value", "y_context", *names):
            trained.predict(X, outputs, QUERIES)


def test_a_run_is_loaded_by_name_folder_or_object(run: Run, results: Path) -> None:
    models = [icl.load(source).model for source in (run, run.path, str(run.path))]
    models.append(icl.load("tour", results).model)
    for model in models:
        assert all(map(torch.equal, model.state_dict().values(), models[0].state_dict().values()))
    with refused("unknown-name", "'tuor'", "'tour'"):
        icl.load("tuor", results)


def test_examples_in_docstrings_are_correct() -> None:
    assert doctest.testmod(module).failed == 0


class _CommonOutput(Backbone[CNP.Settings], abstract=True):
    """Predicts that all outputs are equal to one standard normal variable, plus noise with standard deviation 0.1."""

    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> JointGaussian:
        ones = torch.ones_like(x_target)
        return JointGaussian(0 * ones, ones.unsqueeze(-1), 0.1 * ones)


def test_samples_are_correlated_only_if_the_model_predicts_a_joint_distribution() -> None:
    task = icl.task("gp-mixture", "smoke")
    joint, independent = _CommonOutput(CNP.Settings(), task.shape), icl.CNP(task, width=8)
    x, queries = np.zeros((3, 1)), np.linspace(-1, 1, 7)[:, None]
    joint_samples, independent_samples = (
        icl.sample_y(model, x, np.zeros(3), queries, 200, seed=1) for model in (joint, independent)
    )
    assert joint_samples.shape == independent_samples.shape == (200, 7)
    assert np.corrcoef(joint_samples.T)[0, 1] > 0.95 and abs(np.corrcoef(independent_samples.T)[0, 1]) < 0.3
    _, std = icl.predict(independent, x, np.zeros(3), queries, return_std=True)
    np.testing.assert_allclose(independent_samples.std(0), std, rtol=0.25)
    np.testing.assert_allclose(icl.predict(joint, x, np.zeros(3), queries, return_std=True)[1], 1.01**0.5, rtol=1e-5)
    repeated_samples = icl.sample_y(independent, x, np.zeros(3), queries, 200, seed=1)
    np.testing.assert_array_equal(repeated_samples, independent_samples)
    batch_samples = icl.sample_y(independent, np.zeros((2, 3, 1)), np.zeros((2, 3)), np.zeros((2, 4, 1)))
    assert batch_samples.shape == (1, 2, 4)
    with refused("bad-value", "n_samples", 0):
        icl.sample_y(independent, x, np.zeros(3), queries, 0)


def test_a_joint_distribution_is_predicted_for_all_queries_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iclbench.api.predict._QUERIES_PER_PASS", 2)
    pass_sizes: list[int] = []

    class Counting(_CommonOutput, abstract=True):
        def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> JointGaussian:
            pass_sizes.append(x_target.shape[1])
            return super().predict_targets(context, x_target, related)

    model = Counting(CNP.Settings(), icl.task("gp-mixture", "smoke").shape)
    for joint in ("apart", "exchangeable"):
        model.joint = joint
        icl.predict(model, np.zeros((3, 1)), np.zeros(3), np.zeros((5, 1)))
    assert pass_sizes == [2, 2, 1, 5]
