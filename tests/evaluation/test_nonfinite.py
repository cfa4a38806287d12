"""Answers that are no numbers: failed rows with a reason, never a mean over the others or a shortened area."""

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

BAD = (2, 5, 6)  # context sizes at which the broken predictor has no number, in the last 42 of 48 episodes


class Zero(Predictor):
    """Predicts zero; at some context sizes something else, in the hard episodes."""

    def __init__(self, answer: float | None = None, at: tuple[int, ...] = BAD) -> None:
        self.answer, self.at = answer, at

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.zeros_like(points.y)
        if self.answer is not None:
            mean[6:, list(self.at)] = self.answer
        return Point(mean if prefixes is None else mean[:, list(prefixes)])


class Uncertain(Zero):
    """The same as a Gaussian whose standard deviation is no number; its mean is one."""

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
def test_every_position_that_is_not_finite_is_a_failed_row_and_the_others_stay(prompts, tmp_path, answer):
    assert evaluate_cell(tmp_path, contestant(Zero(), "sound"), prompts) is None
    reason = evaluate_cell(tmp_path, contestant(Zero(answer)), prompts)
    assert reason is not None and reason.startswith("squared_error is ")
    assert "in 42 of 48 episodes, at 3 of 9 context sizes; first in episode 6 after 2 examples" in reason
    found, sound = rows(tmp_path, "squared_error"), rows(tmp_path, "squared_error", "sound")
    assert found.index.tolist() == list(range(9))
    failed = found[found["status"] == "failed"]
    assert tuple(failed.index) == BAD and failed["value"].isna().all() and set(failed["reason"]) == {reason}
    good = found.drop(index=failed.index)
    pd.testing.assert_frame_equal(good[["value", "low", "high"]], sound.loc[good.index, ["value", "low", "high"]])


def test_there_is_no_area_no_score_and_no_pairing_over_what_is_left(prompts, tmp_path):
    evaluate_cell(tmp_path, contestant(Zero(float("nan"))), prompts)
    area = rows(tmp_path, "auc").iloc[0]
    assert (area["status"], pd.isna(area["value"])) == ("failed", True)
    assert tables.read_all("errors", tmp_path).empty
    for name in ("zero", "knn-3"):
        evaluate_cell(tmp_path, contestant(Zero(), name, "baseline"), prompts)
    write_scores(PromptSetRows(tmp_path, prompts))
    assert set(tables.read_all("values", tmp_path).query("metric == 'score'")["run"]) == {"zero", "knn-3"}


def test_a_cell_that_failed_at_one_context_size_is_tried_again(prompts, tmp_path):
    broken = contestant(Zero(float("nan"), at=(3,)))
    assert evaluate_cell(tmp_path, broken, prompts) is not None
    assert not cells.is_done(tmp_path, broken, prompts)
    mended = contestant(Zero())
    assert evaluate_cell(tmp_path, mended, prompts) is None
    assert cells.is_done(tmp_path, mended, prompts)
    assert set(rows(tmp_path, "squared_error")["status"]) == {"ok"}


def test_one_metric_that_is_no_number_fails_the_others_of_its_position(prompts, tmp_path):
    """A NaN compared with a bound is False, so that coverage would count it as a miss."""
    reason = evaluate_cell(tmp_path, contestant(Uncertain(float("nan"))), prompts)
    assert reason is not None and reason.startswith("log_likelihood is nan")
    for metric in Gaussian.metrics:
        status = rows(tmp_path, metric)["status"]
        assert tuple(status[status == "failed"].index) == BAD, metric
    assert rows(tmp_path, "auc")["status"].tolist() == ["failed"]


def test_the_likeliest_of_logits_that_are_no_numbers_is_not_counted():
    accuracy, entropy = (np.ones((2, 3)), np.array([[0.1, np.nan, 0.2], [0.1, 0.3, 0.2]]))
    curve = Curve((0, 1, 2), {"accuracy": accuracy, "cross_entropy": entropy}, 1.0)
    assert curve.failed.tolist() == [False, True, False]
    assert "cross_entropy is nan in 1 of 2 episodes" in str(curve.problem)
    # ... which is what happens to them otherwise.
    broken = Categorical(torch.full((1, 1, 3), float("nan"))).scores(torch.zeros(1, 1, dtype=torch.long))
    assert broken["accuracy"].isfinite().all() and not broken["cross_entropy"].isfinite().any()


def test_what_a_shift_leaves_undefined_is_not_asked(prompts, tmp_path):
    """Queries orthogonal to n examples exist for n < 3 in three dimensions: answers beyond do not matter."""
    shifted = PromptSet(prompts.task, "smoke", "orthogonal-query")
    assert evaluate_cell(tmp_path, contestant(Zero(float("nan"), at=(3, 4, 8))), shifted) is None
    assert rows(tmp_path, "squared_error").index.tolist() == [0, 1, 2]
    assert rows(tmp_path, "auc")["status"].tolist() == ["ok"]
    assert evaluate_cell(tmp_path, contestant(Zero(float("nan"), at=(2,))), shifted) is not None


def test_an_area_is_over_the_sizes_that_all_episodes_were_asked_at():
    scores = np.array([[9.0, 1.0, 3.0, 7.0], [np.nan, 3.0, 5.0, np.nan]])
    asked = np.array([[True, True, True, True], [False, True, True, True]])
    curve = Curve((0, 2, 4, 6), {"squared_error": scores}, 1.0, asked)
    assert curve.area("squared_error") == pytest.approx([(1 + 2 * 3 + 7) / 4, np.nan], nan_ok=True)
    assert curve.failed.tolist() == [False, False, False, True]


def test_scores_are_not_finite_only_where_they_were_asked(prompts):
    curve = learning_curve(Zero(), PromptSet(prompts.task, "smoke", "repeated-query"))
    assert curve.asked is not None and curve.asked.all(0).tolist() == [False] + 8 * [True]
    assert curve.problem is None and not curve.failed.any()


def test_who_failed_stands_last_without_an_area(prompts, tmp_path):
    for name, predictor in (("sound", Zero()), ("model", Zero(float("nan"), at=(8,)))):
        evaluate_cell(tmp_path, contestant(predictor, name), prompts)
    columns, lines = leaderboard(tables.read_all("values", tmp_path))
    assert columns == ["contestant", "area", "score", "n=1", "n=5", "n=8"]
    assert [line[:2] for line in lines] == [["[bold]sound[/bold]", lines[0][1]], ["[bold]model[/bold]", "failed"]]
    assert lines[1][-1] == "failed" and lines[1][-2] == lines[0][-2]


def test_a_model_that_answers_no_numbers_stays_in_the_table_and_the_command_fails(card_path, tmp_path, monkeypatch):
    run = create(tmp_path, resolve_run(str(card_path), "gpt2", "smoke", 0, ["train.steps=2"]))
    train(run)
    sound = Predictor.ask
    broken = lambda self, *asked: sound(self, *asked).map(lambda t: t * torch.nan)  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(Backbone, "ask", broken)
        shown = CliRunner().invoke(app, ["eval", "--results", str(tmp_path), "--baseline", "zero"])
    assert shown.exit_code == 1
    lines = [line for line in shown.output.splitlines() if line.startswith(run.name)]
    assert [line.split()[1] for line in lines] == ["failed"]
    why = f"{run.name}: squared_error is nan in 48 of 48 episodes, at 9 of 9 context sizes; first in episode 0 after 0"
    assert f"failed: {why}" in shown.output.replace("\n", " ")
    assert CliRunner().invoke(app, ["eval", "--results", str(tmp_path), "--baseline", "zero"]).exit_code == 0
