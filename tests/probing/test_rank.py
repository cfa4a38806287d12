"""The rank of the prediction matrix for least squares, explicit attention and trained backbones."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iclbench import tables
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.context import Context
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Categorical, Point
from iclbench.core.predictor import Predictor
from iclbench.estimators.least_squares import LeastSquares
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.monitor import Monitor
from iclbench.families.request import Request
from iclbench.probing import rank as module
from iclbench.probing.cells import cached_cell
from iclbench.probing.rank import (
    RankSet,
    effective_rank,
    numbers_of_contexts,
    numerical_rank,
    prediction_matrix,
    probe_rank,
)
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.refusals import refused


@dataclass(frozen=True)
class Attention(Predictor):
    """One self-attention layer over (x_1, y_1), ..., (x_q, 0). The prediction is the y component of the output at
    the query.
    """

    linear: bool

    def predict_targets(self, context: Points, x_target: torch.Tensor, related: Points | None = None) -> Point:
        scores = torch.einsum("bqd,bnd->bqn", x_target, context.x)
        if self.linear:
            return Point(torch.einsum("bqn,bnd->bqd", scores, context.y) / context.count)
        query_score = x_target.square().sum(-1, keepdim=True)  # the query also attends to itself
        weights = torch.cat([scores, query_score], -1).softmax(-1)[..., :-1]
        return Point(torch.einsum("bqn,bnd->bqd", weights, context.y))


class Logits(Predictor):
    """Predicts logits that are multiples of x, with a different factor for each label."""

    def predict_targets(self, context: Points, x_target: torch.Tensor, related: Points | None = None) -> Categorical:
        return Categorical(x_target * torch.tensor([1.0, 10.0, 100.0]))


def functions(task: str, dim: int, count: int, context: int) -> tuple[Episodes, torch.Tensor]:
    family = resolve_task(task, "smoke", {"dim": dim})[0].build()
    episodes = family.sample(Request(count, context + 1, torch.Generator().manual_seed(0))).to(dtype=torch.float64)
    return Episodes(context=episodes.context.span(0, context), scored=episodes.scored), episodes.context.x[:, context]


def spectrum(*values: float) -> torch.Tensor:
    """Return a matrix with these singular values and random singular vectors."""
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    diagonal = torch.zeros(6, 6, dtype=torch.float64)
    diagonal[range(len(values)), range(len(values))] = torch.tensor(values, dtype=torch.float64)
    return rotation @ diagonal @ rotation.T


@pytest.mark.parametrize(
    ("values", "expected"),
    [((1, 1, 1), 3), ((5,), 1), ((), 0), ((3, 1), math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))],
)
def test_the_effective_rank_is_the_exponential_of_the_entropy_of_singular_values(
    values: tuple[float, ...], expected: float
) -> None:
    assert effective_rank(spectrum(*values)) == pytest.approx(expected, abs=1e-9)


def test_the_numerical_rank_counts_singular_values_above_the_tolerance() -> None:
    matrix = spectrum(100, 0.1, 1e-5)
    assert numerical_rank(matrix) == 2
    assert numerical_rank(matrix, 1e-8) == 3 == np.linalg.matrix_rank(matrix.numpy(), 1e-6)
    assert numerical_rank(torch.zeros(3, 3)) == 0


def test_numbers_of_contexts_double_up_to_the_maximum() -> None:
    assert numbers_of_contexts(64) == [4, 8, 16, 32, 64]
    assert numbers_of_contexts(20) == [4, 8, 16, 20]
    assert numbers_of_contexts(4) == [4]


def test_every_matrix_entry_is_the_prediction_for_one_query_after_one_context() -> None:
    contexts, queries = functions("linear", 3, 5, 4)
    matrix = prediction_matrix(LeastSquares(), contexts, queries[:4])
    for c in range(5):
        weights = np.linalg.lstsq(contexts.context.x[c].numpy(), contexts.context.y[c, :, 0].numpy(), rcond=None)[0]
        np.testing.assert_allclose(matrix[c].numpy(), queries[:4].numpy() @ weights, atol=1e-9)


@pytest.mark.parametrize("dim", [2, 5])
def test_least_squares_and_linear_attention_have_the_rank_of_the_inputs(dim: int) -> None:
    contexts, queries = functions("linear", dim, 40, 12)
    for predictor in (LeastSquares(), Attention(linear=True)):
        assert numerical_rank(prediction_matrix(predictor, contexts, queries), 1e-9) == dim


def test_the_rank_of_softmax_attention_grows_with_the_number_of_contexts() -> None:
    """CoQE, theorem 3.10: even for one-dimensional inputs and a single example, the predictions of softmax attention
    cannot be written with finitely many features."""
    contexts, queries = functions("linear", 1, 64, 1)
    matrix = prediction_matrix(Attention(linear=False), contexts, queries)
    ranks = [numerical_rank(matrix[:count], 1e-9) for count in (4, 8, 16, 32, 64)]
    assert ranks == sorted(ranks) and ranks[0] >= 4 and ranks[-1] > 2 * ranks[0]
    linear = prediction_matrix(Attention(linear=True), contexts, queries)
    assert [numerical_rank(linear[:count], 1e-9) for count in (4, 8, 16, 32, 64)] == [1] * 5


def test_the_rank_of_coqe_is_the_width_of_its_sample_representation() -> None:
    config = resolve_run("linear", "coqe", "smoke", 0, ["backbone.sample_dim=2"])
    family = config.task.build()
    backbone = config.backbone.build(config.shape(family)).double().eval()
    contexts, queries = functions("linear", family.x_dim, 40, 9)
    with torch.no_grad():
        matrix = prediction_matrix(backbone, contexts, queries)
    assert [numerical_rank(matrix[:count], 1e-9) for count in (4, 40)] == [2, 2]


def test_matrix_entries_for_classification_are_log_odds_of_two_labels() -> None:
    choices = torch.tensor([[True, True, False], [True, False, True]])
    context = Points.full(torch.zeros(2, 1, 1), torch.zeros(2, 1, dtype=torch.int64))
    contexts = Episodes(context=context, scored=context.mask, classes=3, choices=choices)
    matrix = prediction_matrix(Logits(), contexts, torch.tensor([[1.0], [2.0]]))
    assert matrix.tolist() == [[9.0, 18.0], [99.0, 198.0]]


def test_nan_predictions_fail_the_cell(trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prediction_matrix_of = module.prediction_matrix

    def with_nan(*arguments: Any) -> torch.Tensor:
        matrix = prediction_matrix_of(*arguments)
        matrix[3, 0] = torch.nan
        return matrix

    monkeypatch.setattr(module, "prediction_matrix", with_nan)
    reasons = [c.reason for c in probe_rank(Context(tmp_path), trained_run, contexts=4, queries=4)]
    assert all(reason and "1 of 4" in reason for reason in reasons)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = create(tmp_path_factory.mktemp("rank"), resolve_run("linear", "gpt2", "smoke", 0, ["train.steps=2"]))
    train(run)
    return run


def test_a_run_is_compared_with_least_squares_and_the_oracle(trained_run: Run, tmp_path: Path) -> None:
    cells = list(probe_rank(Context(tmp_path), trained_run, contexts=16, queries=24))
    assert [cell.contestant.name for cell in cells] == ["gpt2", "least-squares", "ridge"]
    rows = tables.read_all("values", tmp_path)
    assert set(rows["evaluator"]) == {"rank"} and set(rows["n_context"]) == {10}
    ranks = rows[rows["metric"] == "rank"].pivot_table("value", "contestant", "axis_value")
    assert ranks.columns.tolist() == [4, 8, 16]
    assert ranks.loc["least-squares"].tolist() == [3, 3, 3], "inputs have three dimensions"
    assert ranks.loc["gpt2"].is_monotonic_increasing and ranks.loc["gpt2", 16] > 3, (
        "the rank of softmax attention is not bounded"
    )
    effective = rows[rows["metric"] == "effective_rank"].set_index(["contestant", "axis_value"])["value"]
    assert effective["least-squares"].between(1, 3).all()
    assert all(value <= ranks.loc[name, count] + 1e-9 for (name, count), value in effective.items())
    values = rows[(rows["axis"] == "singular_value") & (rows["contestant"] == "gpt2")].sort_values("axis_value")
    assert len(values) == 16 and values["value"].iloc[0] == 1 and values["value"].is_monotonic_decreasing
    assert all(cell.cached for cell in probe_rank(Context(tmp_path), trained_run, contexts=16, queries=24))
    assert not any(cell.cached for cell in probe_rank(Context(tmp_path), trained_run, contexts=16, queries=23))


def test_zero_predictions_have_rank_zero_and_no_singular_values(tmp_path: Path) -> None:
    """Singular values would be divided by the largest one, which is 0."""
    prompts = RankSet(resolve_task("linear", "smoke")[0], "smoke", context=4, contexts=8, queries=6)
    (zero,) = contestants.baselines(prompts, ["zero"])
    shared = cells.shared_columns(zero, prompts, "rank")
    assert cached_cell(tmp_path, zero, prompts, shared, lambda: module._rank_tables(zero, prompts)).reason is None
    rows = tables.read_all("values", tmp_path)
    assert set(rows["metric"]) == {"rank", "effective_rank"}
    assert rows["value"].tolist() == [0] * 4 and (rows["status"] == "ok").all()


def test_the_matrix_of_a_run_contains_its_predictions(trained_run: Run, tmp_path: Path) -> None:
    (cell, *_) = probe_rank(Context(tmp_path), trained_run, contexts=4, queries=6)
    assert isinstance(cell.prompts, RankSet)
    episodes = cell.prompts.episodes.to(dtype=torch.float64)
    model, answers = trained_run.load().double(), np.zeros((4, 6))
    for c in range(4):
        for q in range(6):
            with torch.no_grad():
                prediction = model.predict_targets(episodes[c : c + 1].context, episodes.queries.x[q : q + 1, :1])
            answers[c, q] = prediction.mean.item()
    rows = tables.read_all("values", tmp_path).query("metric == 'singular_value' and contestant == 'gpt2'")
    expected = np.linalg.svd(answers, compute_uv=False)
    np.testing.assert_allclose(rows.sort_values("axis_value")["value"], expected / expected[0], atol=1e-10)
    assert rows["normaliser"].iloc[0] == pytest.approx(expected[0])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = ["train.steps=2", "train.batch=2", "backbone.encoder=contours-64"]
    run = create(tmp_path_factory.mktemp("rank"), resolve_run("bursty", "gpt2", "smoke", 0, settings))
    train(run, monitor=Monitor)
    return run


def test_the_rank_of_a_classifier_is_measured_on_sequences_of_two_classes(classifier: Run, tmp_path: Path) -> None:
    (cell,) = probe_rank(Context(tmp_path), classifier, contexts=8, queries=6)
    assert cell.reason is None
    assert cell.prompts.evaluator == "icl"
    choices = cell.prompts.episodes.choices
    assert choices is not None and (choices.sum(1) == 2).all()
    rows = tables.read_all("values", tmp_path).query("metric == 'effective_rank'")
    assert rows["axis_value"].tolist() == [4, 8] and rows["value"].between(1, 6).all()


def test_the_rank_of_a_classifier_is_measured_with_the_context_size_of_its_test(
    classifier: Run, tmp_path: Path
) -> None:
    """The test has eight examples, whatever the number of examples in training."""
    with refused("not-applicable", "'icl'", 8, "--context"):
        list(probe_rank(Context(tmp_path), classifier, [4]))
    settings = ["train.steps=2", "train.batch=2", "train.evaluate_every=0", "task.points=6"]
    other = create(tmp_path, resolve_run("bursty", "gpt2", "smoke", 0, settings))
    train(other)
    (cell,) = probe_rank(Context(tmp_path), other, contexts=4, queries=4)
    assert isinstance(cell.prompts, RankSet) and cell.prompts.context == cell.prompts.episodes.context.count == 8


def test_classification_without_sequences_of_two_labels_is_refused(
    classifier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TWO_LABEL_EVALUATOR", "no_such_test")
    with refused("not-applicable", "'bursty'", "'no_such_test'"):
        list(probe_rank(Context(tmp_path), classifier))
