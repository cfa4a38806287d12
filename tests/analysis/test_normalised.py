"""Contests, built from hand-made rows: their scores, their scale, and paired differences."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.normalised import (
    Contest,
    all_scores,
    contests,
    presets,
    related_scores,
)
from tests.analysis import hand_made
from tests.analysis.hand_made import FAILED, Row, results_of

SCORE = {"metric": "score", "evaluator": "next", "score_of": "squared_error", "score_one": "ridge", "normaliser": 0.5}
MODEL = hand_made.MODEL | SCORE | {"seed": 0}
ZERO = hand_made.ZERO | SCORE


def contest_of(*rows: Row, errors: Sequence[Row] = (), hidden: Sequence[Row] = ()) -> Contest:
    (contest,) = contests(results_of(rows, errors, hidden), "smoke")
    return contest


def errors_of(run: str, values: Sequence[float], **columns: object) -> list[Row]:
    row = {"run": run, "prompt_set": "p", "metric": "squared_error"} | columns
    return [row | {"episode": episode, "value": value} for episode, value in enumerate(values)]


def test_contests_are_sorted_by_question_and_task_and_titles_name_the_test() -> None:
    rows = [
        ZERO | {"task": task, "evaluator": evaluator}
        for task in ("b", "a")
        for evaluator in ("zzz", "iwl", "icl", "targets", "next")
    ]
    results = results_of([*rows, ZERO | {"preset": "grid", "task": "c"}])
    all_contests = contests(results, "smoke")
    assert [(c.evaluator, c.task.task) for c in all_contests] == [
        ("next", "a"),
        ("next", "b"),
        ("targets", "a"),
        ("targets", "b"),
        ("icl", "a"),
        ("iwl", "a"),
        ("icl", "b"),
        ("iwl", "b"),
        ("zzz", "a"),
        ("zzz", "b"),
    ]
    assert [c.title for c in all_contests[:4]] == ["a", "b", "a", "b"]
    assert all_contests[4].title.startswith("a") and "ICL" in all_contests[4].title and "zzz" in all_contests[-1].title
    assert contests(results, "smoke") is all_contests
    assert [c.task.task for c in contests(results, "grid")] == ["c"] and contests(results, "paper") == []


def test_only_presets_with_scores_are_listed() -> None:
    rows = [
        ZERO | {"preset": "small"},
        ZERO | {"preset": "grid", "metric": "auc"},
        ZERO | {"preset": "small", "task": "u"},
    ]
    assert presets(results_of([*rows, ZERO])) == ["small", "smoke"]


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "auc"},
        {"shift": "noisy-1"},
        {"axis": "branch", "axis_value": 10},
        {"evaluator": "rank"},
        {"kind": "published"},
        {"trained_on": "u"},
        {"n_context": 4},
        {"n_related": 1},
        FAILED,
    ],
)
def test_a_contest_contains_only_successful_scores_on_the_training_distribution(changes: Row) -> None:
    contest = contest_of(ZERO, MODEL | {"n_related": 0}, MODEL | {"run": "other", "contestant": "other"} | changes)
    assert sorted(contest.rows["run"]) == ["m-s0", "zero"]


def test_contestants_with_a_failed_run_have_no_score_and_subtests_have_no_contest() -> None:
    rows = [
        ZERO,
        MODEL,
        MODEL | {"run": "m-s1"} | FAILED,
        ZERO | {"evaluator": "icl"},
        ZERO | {"evaluator": "icl_paired"},
    ]
    by_test = {contest.evaluator: contest for contest in contests(results_of(rows), "smoke")}
    assert set(by_test) == {"next", "icl"} and by_test["next"].rows["run"].tolist() == ["zero"]


def test_the_scale_of_a_contest_is_read_from_its_scores() -> None:
    without_scale = MODEL | {"score_of": None, "score_one": None, "normaliser": 9.0, "prompt_set": None}
    scale = {"score_of": "log_likelihood", "score_one": "knn-3"}
    contest = contest_of(
        without_scale, ZERO | scale | {"normaliser": None}, ZERO | scale | {"run": "b", "normaliser": 0.25}
    )
    assert (contest.metric, contest.reference, contest.span) == ("log_likelihood", "knn-3", 0.25)
    assert (contest.prompt_set, contest.family) == ("p", "f")
    unknown = contest_of(without_scale)
    assert unknown.metric == "squared_error" and math.isnan(unknown.span) and unknown.prompt_set == ""


def test_scores_are_means_over_runs_and_their_intervals_cover_the_intervals_of_all_runs() -> None:
    seeds = [
        MODEL | {"run": f"m-s{seed}", "seed": seed, "value": value, "low": value - width, "high": value + width}
        for seed, value, width in ((0, 0.4, 0.1), (1, 0.8, 0.3))
    ]
    contest = contest_of(*seeds, ZERO | {"value": 0.0})
    row = contest.scores.set_index("contestant").loc["m"]
    assert row[["score", "low", "high", "lowest", "highest"]].tolist() == pytest.approx([0.6, 0.3, 1.1, 0.4, 0.8])
    assert row[["kind", "runs", "run", "row"]].tolist() == ["backbone", 2, "m-s0; m-s1", "t"]
    assert contest.scores[["score", "low", "high", "lowest", "highest"]].dtypes.eq(float).all()
    two_tasks = contests(results_of([*seeds, ZERO | {"task": "u", "family": "g"}]), "smoke")
    assert all_scores(two_tasks)[["contestant", "family"]].to_numpy().tolist() == [["m", "f"], ["zero", "g"]]
    assert all_scores(two_tasks).index.tolist() == [0, 1]


def test_the_separation_of_a_contest_is_computed_from_its_backbones_only() -> None:
    models = [MODEL | {"contestant": name, "run": f"{name}-s0", "value": float(i)} for i, name in enumerate("abcde")]
    separation = contest_of(*models, ZERO | {"value": 50.0}).separation
    assert separation is not None and (separation.contestants, separation.gap) == (5, pytest.approx(0.5))
    assert contest_of(*models[:4], ZERO).separation is None


def test_the_method_that_scores_0_is_found_even_if_it_is_hidden() -> None:
    assert contest_of(MODEL, hidden=[ZERO]).guessing_method == "zero"
    assert contest_of(MODEL, ZERO | {"contestant": "knn-3", "run": "knn-3"}).guessing_method is None
    related = contest_of(MODEL, hidden=[ZERO | {"n_related": 1}])
    assert related.hidden_rows.empty and related.guessing_method is None
    for value, name in ((2.0, "mean-image"), (0.5, "zero")):
        other = ZERO | {"contestant": "mean-image", "run": "mean-image", "value": value}
        assert contest_of(ZERO, MODEL, hidden=[other]).guessing_method == name
    chance = contest_of(MODEL | {"score_of": "accuracy"}, ZERO | {"score_of": "accuracy", "contestant": "chance"})
    assert chance.guessing_method == "chance"


def test_the_hidden_rows_of_a_contest_are_successful_scores_on_its_question_and_prompts() -> None:
    others: list[Row] = [
        {"evaluator": "icl"},
        {"axis": "branch", "axis_value": 10},
        {"prompt_set": "q"},
        {"run": "broken"} | FAILED,
        {"metric": "auc"},
    ]
    contest = contest_of(MODEL, hidden=[ZERO, *(ZERO | changes for changes in others)])
    pd.testing.assert_frame_equal(
        contest.hidden_rows.reset_index(drop=True),
        tables.frame("values", [ZERO]),
        check_index_type=False,
        check_like=True,
    )


A, B = np.array([0.1, 0.4, 0.3, 0.8]), np.array([0.3, 0.5, 0.9, 0.7])


def expected_difference(gaps: np.ndarray, span: float) -> tuple[float, float, float]:
    """The mean of gaps / span and its interval by Student's t."""
    gaps = gaps / span
    low, high = stats.t.interval(0.95, len(gaps) - 1, gaps.mean(), stats.sem(gaps))
    return float(gaps.mean()), float(low), float(high)


@pytest.mark.parametrize("metric", ["squared_error", "log_likelihood"])
@pytest.mark.parametrize("evaluator", ["next", "targets"])
def test_differences_are_paired_and_have_the_unit_of_scores(evaluator: str, metric: str) -> None:
    scale = {"evaluator": evaluator, "score_of": metric, "normaliser": 0.5}
    sizes = {} if evaluator == "next" else {"n_context": 4, "n_related": 0}
    errors = [
        *errors_of("m-s0", A.tolist(), metric=metric, **sizes),
        *errors_of("zero", B.tolist(), metric=metric, **sizes),
    ]
    contest = contest_of(MODEL | scale, ZERO | scale, errors=errors)
    sign = -1 if metric == "squared_error" else 1
    gap = contest.difference("m", "zero")
    assert gap is not None
    assert (gap.value, gap.low, gap.high) == pytest.approx(expected_difference(sign * (A - B), 0.5))
    reverse = contest.difference("zero", "m")
    assert reverse is not None and (reverse.low, reverse.high) == pytest.approx((-gap.high, -gap.low))
    assert contest.difference("m", "zero") is gap


@pytest.mark.parametrize("evaluator", ["next", "targets"])
def test_without_a_span_or_scores_of_single_episodes_no_difference_is_computed(evaluator: str) -> None:
    sizes = {} if evaluator == "next" else {"n_context": 4, "n_related": 0}
    rows = [row | {"evaluator": evaluator} for row in (MODEL, ZERO)]
    error_rows = [errors_of(run, A.tolist(), **sizes) for run in ("m-s0", "zero")]
    for errors in error_rows:
        assert contest_of(*rows, errors=errors).difference("m", "zero") is None
    unknown = [row | {"normaliser": None} for row in rows]
    assert contest_of(*unknown, errors=[*error_rows[0], *error_rows[1]]).difference("m", "zero") is None


def test_differences_are_computed_over_common_seeds() -> None:
    """Without common seeds, all seeds are compared."""
    runs = {("m", 0): 0.0, ("m", 1): 1.0, ("n", 1): 3.0, ("n", 2): 7.0}
    rows = [MODEL | {"contestant": name, "run": f"{name}-s{s}", "seed": s, "normaliser": 1.0} for name, s in runs]
    errors = [row for (name, s), mean in runs.items() for row in errors_of(f"{name}-s{s}", (A + mean).tolist())]

    def gap(*rows: Row) -> float:
        difference = contest_of(*rows, errors=errors).difference("m", "n")
        assert difference is not None
        return difference.value

    assert gap(*rows) == pytest.approx(3.0 - 1.0)
    assert gap(rows[0], rows[2], rows[3]) == pytest.approx(5.0)
    assert gap(*(row | {"seed": None} for row in rows)) == pytest.approx(5.0 - 0.5)


def test_scores_by_number_of_related_datasets_are_means_over_runs() -> None:
    targets = {"evaluator": "targets"}
    rows = [
        MODEL | targets | {"run": f"m-s{seed}", "n_related": n, "value": n + seed} for seed in (0, 1) for n in (0, 2)
    ]
    (task,) = results_of([*rows, ZERO | targets, ZERO | {"evaluator": "icl", "n_related": 3}]).slices
    assert related_scores(task)[["contestant", "n_related", "value", "runs"]].to_numpy().tolist() == [
        ["m", 0, 0.5, 2],
        ["m", 2, 2.5, 2],
    ]
    (plain,) = results_of([row for row in rows if row["n_related"] == 0]).slices
    empty = related_scores(plain)
    assert isinstance(empty, pd.DataFrame) and empty.empty
