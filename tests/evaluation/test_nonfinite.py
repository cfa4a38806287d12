"""Non-finite predictions: failed rows have a reason, and means and areas do not skip the affected positions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from iclbench import tables
from iclbench.backbones.base import Backbone
from iclbench.cli.main import app
from iclbench.cli.summary import leaderboard
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.predictions import Categorical, Gaussian, Point
from iclbench.core.predictor import Predictor
from iclbench.evaluation import cells
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.curves import Curve, learning_curve
from iclbench.evaluation.evaluate import evaluate_cell
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scores import write_scores
from iclbench.store.runs import create
from iclbench.training.run import train

BAD_SIZES = (2, 5, 6)  # context sizes with a non-finite prediction in the last 42 of 48 episodes


class Zero(Predictor):
    """Predicts zero, except that it predicts `answer` at the context sizes `sizes` in the last 42 of 48 episodes."""

    def __init__(self, answer: float | None = None, sizes: tuple[int, ...] = BAD_SIZES) -> None:
        self.answer, self.sizes = answer, sizes

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.zeros_like(points.y)
        if self.answer is not None:
            mean[6:, list(self.sizes)] = self.answer
        return Point(mean if prefixes is None else mean[:, list(prefixes)])


class Uncertain(Zero):
    """Predicts a Gaussian with mean zero and a non-finite standard deviation."""

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        broken = super().predict_next(points, prefixes=prefixes).mean
        return Gaussian(torch.zeros_like(broken), 1 + broken)


@pytest.fixture
def prompts(card_path: Path) -> PromptSet:
    return PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")


def contestant(predictor: Predictor, name: str = "model", kind: str = "backbone") -> PredictorContestant:
    return PredictorContestant(name, name, kind, identity=name, predictor=predictor)


def rows(results: Path, metric: str, run: str = "model") -> pd.DataFrame:
    values = tables.read_all("values", results)
    return values[values["metric"].eq(metric) & values["run"].eq(run)].set_index("n_context").sort_index()


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), 1e30], ids=["nan", "inf", "overflow"])
def test_only_positions_with_nonfinite_scores_have_failed_rows(prompts, tmp_path, answer):
    assert evaluate_cell(tmp_path, contestant(Zero(), "sound"), prompts) is None
    reason = evaluate_cell(tmp_path, contestant(Zero(answer)), prompts)
    names = ["squared_error", "42 of 48 episodes", "3 of 9 context sizes", "episode 6", "2 examples"]
    assert reason is not None and all(name in reason for name in names)
    affected, sound = rows(tmp_path, "squared_error"), rows(tmp_path, "squared_error", "sound")
    assert affected.index.tolist() == list(range(9))
    failed = affected[affected["status"] == "failed"]
    assert tuple(failed.index) == BAD_SIZES and failed["value"].isna().all() and set(failed["reason"]) == {reason}
    good = affected.drop(index=failed.index)
    pd.testing.assert_frame_equal(good[["value", "low", "high"]], sound.loc[good.index, ["value", "low", "high"]])


def test_area_score_and_errors_are_missing_if_a_position_failed(prompts, tmp_path):
    evaluate_cell(tmp_path, contestant(Zero(float("nan"))), prompts)
    area = rows(tmp_path, "auc").iloc[0]
    assert (area["status"], pd.isna(area["value"])) == ("failed", True)
    assert tables.read_all("errors", tmp_path).empty
    for name in ("zero", "knn-3"):
        evaluate_cell(tmp_path, contestant(Zero(), name, "baseline"), prompts)
    write_scores(PromptSetRows(tmp_path, prompts))
    assert set(tables.read_all("values", tmp_path).query("metric == 'score'")["run"]) == {"zero", "knn-3"}


def test_a_cell_that_failed_at_one_context_size_is_recomputed(prompts, tmp_path):
    broken = contestant(Zero(float("nan"), sizes=(3,)))
    assert evaluate_cell(tmp_path, broken, prompts) is not None
    assert not cells.is_done(tmp_path, broken, prompts)
    fixed = contestant(Zero())
    assert evaluate_cell(tmp_path, fixed, prompts) is None
    assert cells.is_done(tmp_path, fixed, prompts)
    assert set(rows(tmp_path, "squared_error")["status"]) == {"ok"}


def test_one_nonfinite_metric_fails_all_metrics_at_its_position(prompts, tmp_path):
    """Otherwise coverage would count NaN as a miss, because comparisons with NaN are False."""
    reason = evaluate_cell(tmp_path, contestant(Uncertain(float("nan"))), prompts)
    assert reason is not None and "log_likelihood is nan" in reason
    for metric in Gaussian.metrics:
        status = rows(tmp_path, metric)["status"]
        assert tuple(status[status == "failed"].index) == BAD_SIZES, metric
    assert rows(tmp_path, "auc")["status"].tolist() == ["failed"]


def test_nan_logits_have_no_accuracy():
    accuracy, entropy = (np.ones((2, 3)), np.array([[0.1, np.nan, 0.2], [0.1, 0.3, 0.2]]))
    curve = Curve((0, 1, 2), {"accuracy": accuracy, "cross_entropy": entropy}, 1.0)
    assert curve.failed.tolist() == [False, True, False]
    assert "cross_entropy is nan" in str(curve.failure) and "1 of 2 episodes" in str(curve.failure)
    # An accuracy computed from NaN logits would be finite.
    broken = Categorical(torch.full((1, 1, 3), float("nan"))).scores(torch.zeros(1, 1, dtype=torch.long))
    assert broken["accuracy"].isfinite().all() and not broken["cross_entropy"].isfinite().any()


def test_positions_that_a_shift_leaves_undefined_are_not_scored(prompts, tmp_path):
    """In three dimensions, queries orthogonal to n examples exist only for n < 3."""
    shifted = PromptSet(prompts.task, "smoke", "orthogonal-query")
    assert evaluate_cell(tmp_path, contestant(Zero(float("nan"), sizes=(3, 4, 8))), shifted) is None
    assert rows(tmp_path, "squared_error").index.tolist() == [0, 1, 2]
    assert rows(tmp_path, "auc")["status"].tolist() == ["ok"]
    assert evaluate_cell(tmp_path, contestant(Zero(float("nan"), sizes=(2,))), shifted) is not None


def test_the_area_covers_only_sizes_at_which_all_episodes_are_scored():
    scores = np.array([[9.0, 1.0, 3.0, 7.0], [np.nan, 3.0, 5.0, np.nan]])
    scored = np.array([[True, True, True, True], [False, True, True, True]])
    curve = Curve((0, 2, 4, 6), {"squared_error": scores}, 1.0, scored)
    assert curve.area("squared_error") == pytest.approx([(1 + 2 * 3 + 7) / 4, np.nan], nan_ok=True)
    assert curve.failed.tolist() == [False, False, False, True]


def test_unscored_positions_are_not_failures(prompts):
    curve = learning_curve(Zero(), PromptSet(prompts.task, "smoke", "repeated-query"))
    assert curve.scored is not None and curve.scored.all(0).tolist() == [False] + 8 * [True]
    assert curve.failure is None and not curve.failed.any()


def test_a_failed_model_is_the_last_row_of_the_leaderboard(prompts, tmp_path):
    for name, predictor in (("sound", Zero()), ("model", Zero(float("nan"), sizes=(8,)))):
        evaluate_cell(tmp_path, contestant(predictor, name), prompts)
    columns, lines = leaderboard(tables.read_all("values", tmp_path))
    assert columns == ["contestant", "area", "score", "n=1", "n=5", "n=8"]
    assert [line[:2] for line in lines] == [["[bold]sound[/bold]", lines[0][1]], ["[bold]model[/bold]", "failed"]]
    assert lines[1][-1] == "failed" and lines[1][-2] == lines[0][-2]


@pytest.mark.slow
def test_eval_lists_a_model_with_nan_predictions_as_failed_and_exits_with_1(card_path, tmp_path, monkeypatch):
    run = create(tmp_path, resolve_run(str(card_path), "gpt2", "smoke", 0, ["train.steps=2"]))
    train(run)
    original = Predictor.ask
    broken = lambda self, *args: original(self, *args).map(lambda t: t * torch.nan)  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(Backbone, "ask", broken)
        result = CliRunner().invoke(app, ["eval", "--results", str(tmp_path), "--baseline", "zero"])
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith(run.name)]
    assert [line.split()[1] for line in lines] == ["failed"]
    output = result.output.replace("\n", " ")
    assert all(name in output for name in (f"{run.name}: squared_error is nan", "48 of 48 episodes", "9 of 9"))
    assert CliRunner().invoke(app, ["eval", "--results", str(tmp_path), "--baseline", "zero"]).exit_code == 0
