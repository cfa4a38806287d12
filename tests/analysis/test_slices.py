"""Slices of hand-made rows: training lengths, prompt sets and failed seeds."""

import pandas as pd

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.normalised import contests
from iclbench.analysis.slices import Results, Slice

SHARED = {"task": "t", "family": "f", "preset": "smoke", "shift": "none", "status": "ok", "prompt_set": "p"}
SHARED |= {"card": "c", "version": "0", "value": 1.0}
MODEL = SHARED | {"kind": "backbone", "run": "m-s0", "contestant": "m"}
ZERO = SHARED | {"kind": "baseline", "run": "zero", "contestant": "zero"}
TARGETS = {"evaluator": "targets", "metric": "squared_error", "n_related": 0}


def results_of(rows: list[dict[str, object]], hidden: list[dict[str, object]] | None = None) -> Results:
    frame, hidden_frame = tables.frame("values", rows), tables.frame("values", hidden or [])
    hidden_frame.index += len(frame)
    return Results(frame, EpisodeScores((), set()), tables.frame("costs", []), hidden_rows=hidden_frame)


def test_baselines_have_the_trained_length_of_hidden_models() -> None:
    curves = {"evaluator": "next", "metric": "squared_error"}
    hidden = [MODEL | curves | {"n_context": n} for n in (0, 8)]
    assert results_of([ZERO | curves | {"n_context": 0}], hidden).trained_lengths.tolist() == [8]
    assert results_of([ZERO | curves | {"n_context": 0}]).trained_lengths.isna().all()


def test_hidden_scores_of_a_contest_are_those_of_its_question_over_all_episodes() -> None:
    score = {"evaluator": "next", "metric": "score", "score_of": "squared_error", "score_one": "ridge"}
    hidden = [
        ZERO | score | changes
        for changes in (
            {},
            {"evaluator": "icl"},
            {"axis": "branch", "axis_value": 10},
            {"prompt_set": "q"},
            {"run": "broken", "status": "failed", "reason": "r"},
            {"metric": "auc"},
        )
    ]
    (contest,) = contests(results_of([MODEL | score], hidden), "smoke")
    pd.testing.assert_frame_equal(
        contest.hidden_rows.reset_index(drop=True),
        tables.frame("values", hidden[:1]),
        check_index_type=False,
        check_like=True,
    )


def test_runs_of_another_task_have_no_score_in_a_contest() -> None:
    score = {"evaluator": "next", "metric": "score", "score_of": "squared_error", "score_one": "ridge"}
    other = MODEL | score | {"run": "n-s0", "contestant": "n@u", "trained_on": "u"}
    published = ZERO | score | {"run": "published-zero", "kind": "published"}
    (contest,) = contests(results_of([MODEL | score, other, published]), "smoke")
    assert contest.rows["run"].tolist() == ["m-s0"]


def test_the_prompts_of_targets_are_those_without_a_shift() -> None:
    rows = [ZERO | TARGETS | {"shift": "noisy-1", "prompt_set": "q"}, ZERO | TARGETS]
    assert Slice(results_of(rows), "t", "smoke").target_prompt_set == "p"
    assert Slice(results_of(rows[:1]), "t", "smoke").target_prompt_set is None


def test_a_failed_evaluation_of_a_branch_does_not_remove_the_values_of_the_run() -> None:
    failed = {"status": "failed", "reason": "r", "value": None, "n_related": None}
    on_branch = MODEL | TARGETS | failed | {"axis": "branch", "axis_value": 10}
    other_seed = MODEL | TARGETS | failed | {"run": "m-s1"}
    for failed_row, contestants in ((on_branch, ["m", "zero"]), (other_seed, ["zero"])):
        task = Slice(results_of([MODEL | TARGETS, ZERO | TARGETS, failed_row]), "t", "smoke")
        assert sorted(task.targets["contestant"]) == contestants


def test_rows_without_failed_contestants_are_numbered_from_0() -> None:
    failed = MODEL | TARGETS | {"status": "failed", "reason": "r", "value": None}
    task = Slice(results_of([failed, ZERO | TARGETS, ZERO | TARGETS | {"shift": "noisy-1"}]), "t", "smoke")
    unfailed = task.without_failed(task.rows[task.rows["status"].eq("ok")])
    assert unfailed.index.tolist() == [0, 1] and unfailed.columns.tolist() == task.rows.columns.tolist()
    assert task.targets.index.tolist() == [0, 1]
    assert set(task.targets.columns) == {*task.targets_by_run.columns, "evaluator"}


def test_costs_of_a_trained_length_are_those_of_its_runs_and_of_evaluations_of_this_length() -> None:
    """Evaluations of 8 points, and training steps, which do not depend on the length of an evaluation."""
    curves = {"evaluator": "next", "metric": "squared_error"}
    runs = [MODEL | curves | {"run": run, "contestant": run, "n_context": n} for run, n in (("short", 4), ("long", 8))]
    cost = {"task": "t", "preset": "smoke", "metric": "seconds", "value": 1.0, "device": "cpu", "version": "0"}
    cost |= {"threads": 1}
    costs = [
        cost | {"run": run, "contestant": run, "phase": phase, "n_points": n}
        for run in ("short", "long")
        for phase, n in (("evaluate", 4), ("evaluate", 8), ("train_step", 4))
    ]
    results = Results(tables.frame("values", runs), EpisodeScores((), set()), tables.frame("costs", costs))
    actual = Slice(results, "t", "smoke", 8).costs
    assert actual[["run", "phase", "n_points"]].to_numpy().tolist() == [
        ["long", "evaluate", 8],
        ["long", "train_step", 4],
    ]
    assert len(Slice(results, "t", "smoke").costs) == 6
