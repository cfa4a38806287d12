"""Scores over training, scores at equal computation, and the agreement of rankings."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.normalised import Contest
from iclbench.analysis.over_training import (
    by_run,
    kendall,
    mean_over_contests,
    means,
    ranks,
    scores_at_flops,
    shared_flops,
)
from tests.analysis.hand_made import MODEL, slice_of


def test_the_score_of_a_branch_is_the_score_of_its_run_minus_the_additional_error_divided_by_the_span() -> None:
    """The errors of the branches are 0.3 and 0.1 higher than the error of the run, and the span of the score is 0.5."""
    run = MODEL | {"evaluator": "next", "metric": "auc"}
    branch = run | {"axis": "branch"}
    curve = {"evaluator": "train", "metric": "loss", "axis": "train_step"}
    without_score = {"run": "n-s0", "contestant": "n", "value": 9.0}
    rows = [
        run | {"value": 0.2},
        branch | {"axis_value": 20, "value": 0.3},
        branch | {"axis_value": 10, "value": 0.5},
        branch | {"axis_value": 10, "value": 9.0, "shift": "noisy-1"},
        branch | {"axis_value": 10, "value": 9.0, "metric": "squared_error", "n_context": 4},
        *(run | curve | {"axis_value": step, "value": 1.0} for step in (1, 40)),
        *(row | without_score for row in (run, branch | {"axis_value": 10}, run | curve | {"axis_value": 40})),
        run | {"evaluator": "train", "metric": "loss", "axis": "n_context", "axis_value": 80, "value": 1.0},
        run | {"metric": "squared_error", "axis": "train_step", "axis_value": 80, "value": 1.0},
    ]
    scores = tables.frame("values", [run | {"metric": "score", "value": 0.9}])
    contest = Contest(slice_of(*rows), "next", "squared_error", "ridge", 0.5, "p", scores, scores.iloc[:0])
    frame = by_run(contest)
    assert frame["steps"].tolist() == [10, 20, 40] and frame["share"].tolist() == [0.25, 0.5, 1]
    assert frame["score"].tolist() == pytest.approx([0.9 - 0.3 / 0.5, 0.9 - 0.1 / 0.5, 0.9])
    assert set(frame["contestant"]) == {"m"} and set(frame["run"]) == {"m-s0"}
    assert frame[["steps", "share"]].dtypes.eq(float).all()


TRAINED = pd.DataFrame(
    {
        "contestant": ["a", "a", "a", "b", "b"],
        "flops": [100.0, 400.0, 200.0, 300.0, 600.0],
        "value": [0.1, 0.9, 0.5, 0.3, 0.6],
    }
)


def test_scores_between_two_runs_are_linear_in_the_logarithm_of_operations() -> None:
    scores = scores_at_flops(TRAINED, 300.0)
    share = (math.log(300) - math.log(200)) / (math.log(400) - math.log(200))
    assert scores["a"] == pytest.approx(0.5 + share * 0.4) and scores["b"] == pytest.approx(0.3)


def test_scores_are_not_extrapolated() -> None:
    assert set(scores_at_flops(TRAINED, 200.0).index) == {"a"}
    assert set(scores_at_flops(TRAINED, 500.0).index) == {"b"}
    assert scores_at_flops(TRAINED, 50.0).empty and scores_at_flops(TRAINED, 50.0).dtype == float
    assert scores_at_flops(TRAINED, 400.0)["a"] == pytest.approx(0.9)


def test_the_shared_computation_is_the_smallest_maximum_over_contestants() -> None:
    assert shared_flops(TRAINED) == 400.0


def test_kendall_equals_scipys_tau_over_common_contestants() -> None:
    a = pd.Series([3.0, 1.0, 2.0, 9.0], list("abcx"))
    b = pd.Series([1.0, 2.0, 2.0, 9.0], list("cbay"))
    assert kendall(a, b) == pytest.approx(stats.kendalltau([3, 1, 2], [2, 2, 1]).statistic)
    assert np.isnan(kendall(a, b.iloc[:2]))


def test_equal_scores_share_the_smallest_of_their_ranks() -> None:
    scores = pd.Series({"a": 0.5, "b": 0.9, "c": 0.9, "d": np.nan})
    assert ranks(scores).dropna().to_dict() == {"a": 3, "b": 1, "c": 1}


def test_means_over_contests_omit_contestants_without_a_score_in_every_contest() -> None:
    means = mean_over_contests([pd.Series({"a": 1.0, "b": 2.0}), pd.Series({"a": 3.0})])
    assert means.to_dict() == {"a": 2.0}


def contest_of(rows: list[dict[str, object]], evaluator: str, metric: str, span: float = 0.5) -> Contest:
    """A contest whose scores are those of the rows with the metric `score`."""
    frame = tables.frame("values", rows)
    scores = frame[frame["metric"].eq("score")]
    return Contest(slice_of(*rows), evaluator, metric, "ridge", span, "p", scores, scores.iloc[:0])


def branch_rows(
    run: str, evaluator: str, metric: str, values: dict[int, float], steps: int = 40
) -> list[dict[str, object]]:
    """Return the rows of a run with score 0.5 and value 1, of its branches with the given value for each number of
    steps, and of its training curve."""
    row = MODEL | {"run": run, "contestant": run[0]}
    measured = row | {"evaluator": evaluator, "metric": metric}
    return [
        row | {"evaluator": evaluator, "metric": "score", "value": 0.5},
        measured,
        *(measured | {"axis": "branch", "axis_value": step, "value": value} for step, value in values.items()),
        row | {"evaluator": "train", "metric": "loss", "axis": "train_step", "axis_value": steps},
    ]


def test_a_lower_likelihood_lowers_the_score() -> None:
    """The likelihoods of the branches are 0.2 lower and 0.1 higher than that of the run, and the span is 0.5."""
    rows = branch_rows("m-s0", "targets", "log_likelihood", {10: 0.8, 20: 1.1})
    frame = by_run(contest_of(rows, "targets", "log_likelihood"))
    assert frame["score"].tolist() == pytest.approx([0.5 - 0.4, 0.5 + 0.2, 0.5])
    assert frame[["contestant", "run", "steps", "share"]].to_numpy().tolist() == [
        ["m", "m-s0", 10, 0.25],
        ["m", "m-s0", 20, 0.5],
        ["m", "m-s0", 40, 1.0],
    ]


def test_scores_over_training_use_only_rows_of_the_contest() -> None:
    rows = branch_rows("m-s0", "targets", "log_likelihood", {10: 0.8})
    branch = rows[2] | {"value": 9.0}
    others = [
        branch | {"axis_value": step} | changes
        for step, changes in enumerate(
            (
                {"evaluator": "icl"},
                {"shift": "noisy-1"},
                {"status": "failed", "reason": "r", "value": None},
                {"trained_on": "u"},
                {"stratum": "a"},
                {"n_related": 2},
                {"metric": "squared_error"},
                {"n_context": 4},
                {"axis": "layer"},
                {"run": "x-s0", "contestant": "x"},
            ),
            start=20,
        )
    ]
    baseline = [row | {"kind": "baseline", "run": "k", "contestant": "k"} for row in rows]
    frame = by_run(contest_of([*rows, *others, *baseline], "targets", "log_likelihood"))
    assert frame[["run", "steps"]].to_numpy().tolist() == [["m-s0", 10], ["m-s0", 40]]


@pytest.mark.parametrize(("omitted", "span"), [(2, 0.5), (3, 0.5), (1, 0.5), (None, math.nan)])
def test_scores_over_training_need_branches_steps_a_final_value_and_a_span(omitted: int | None, span: float) -> None:
    rows = branch_rows("m-s0", "targets", "log_likelihood", {10: 0.8})
    contest = contest_of([row for i, row in enumerate(rows) if i != omitted], "targets", "log_likelihood", span)
    frame = by_run(contest)
    assert frame.empty and frame.columns.tolist() == ["contestant", "run", "steps", "share", "score"]
    assert means(contest).empty and {"kind", "value", "low", "high", "runs"} <= {*means(contest)}


def test_only_runs_with_branches_have_scores_over_training() -> None:
    rows = [
        row for run, steps in (("m-s0", {10: 1.0}), ("n-s0", {})) for row in branch_rows(run, "icl", "accuracy", steps)
    ]
    assert set(by_run(contest_of(rows, "icl", "accuracy"))["run"]) == {"m-s0"}


def test_means_over_seeds_are_computed_only_at_steps_that_all_runs_have() -> None:
    rows = [
        *branch_rows("m-s0", "targets", "log_likelihood", {10: 0.8, 20: 1.0}),
        *branch_rows("m-s1", "targets", "log_likelihood", {10: 0.9}),
        *branch_rows("n-s0", "targets", "log_likelihood", {10: 0.8, 20: 1.0}, steps=80),
    ]
    frame = means(contest_of(rows, "targets", "log_likelihood"))
    assert frame[["contestant", "steps", "share", "runs"]].to_numpy().tolist() == [
        ["m", 10, 0.25, 2],
        ["m", 40, 1.0, 2],
        ["n", 10, 0.125, 1],
        ["n", 20, 0.25, 1],
        ["n", 80, 1.0, 1],
    ]
    assert frame["value"].tolist() == pytest.approx([(0.1 + 0.3) / 2, 0.5, 0.1, 0.5, 0.5])
    assert (frame["low"].iloc[0], frame["high"].iloc[0]) == pytest.approx((0.1, 0.3))
    assert set(frame["kind"]) == {"backbone"} and frame["run"].iloc[0] == "m-s0; m-s1"


def test_rows_are_sorted_by_contestant_run_and_steps() -> None:
    rows = [
        row for run in ("n-s1", "n-s0", "m-s0") for row in branch_rows(run, "targets", "log_likelihood", {20: 1, 10: 1})
    ]
    frame = by_run(contest_of(rows, "targets", "log_likelihood"))
    assert frame[["run", "steps"]].to_numpy().tolist() == [
        [run, steps] for run in ("m-s0", "n-s0", "n-s1") for steps in (10, 20, 40)
    ]
    assert frame.index.tolist() == list(range(9))
