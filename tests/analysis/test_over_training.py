"""Scores at equal computation and agreement of orders, against SciPy and interpolation by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.normalised import Contest
from iclbench.analysis.over_training import by_run, kendall, mean_over_contests, scores_at_flops, shared_flops
from iclbench.analysis.slices import Results, Slice


def test_branches_have_the_score_of_the_run_minus_the_loss_in_the_metric() -> None:
    """The error of the branches is 0.3 and 0.1 above that of the run, in a span of 0.5."""
    run = {"run": "m-s0", "contestant": "m", "kind": "backbone", "task": "t", "family": "f", "preset": "smoke"}
    run |= {"shift": "none", "evaluator": "next", "status": "ok", "metric": "auc", "card": "c", "version": "0"}
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
    task = Slice(
        Results(tables.frame("values", rows), EpisodeScores((), set()), tables.frame("costs", [])), "t", "smoke"
    )
    contest = Contest(task, "next", "squared_error", "ridge", 0.5, "p", scores, scores.iloc[:0])
    frame = by_run(contest)
    assert frame["steps"].tolist() == [10, 20, 40] and frame["share"].tolist() == [0.25, 0.5, 1]
    assert frame["score"].tolist() == pytest.approx([0.9 - 0.3 / 0.5, 0.9 - 0.1 / 0.5, 0.9])
    assert set(frame["contestant"]) == {"m"} and set(frame["run"]) == {"m-s0"}


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
    assert scores_at_flops(TRAINED, 50.0).empty
    assert scores_at_flops(TRAINED, 400.0)["a"] == pytest.approx(0.9)


def test_the_shared_computation_is_the_smallest_of_the_longest_runs() -> None:
    assert shared_flops(TRAINED) == 400.0


def test_kendall_is_scipys_tau_over_common_contestants() -> None:
    a = pd.Series([3.0, 1.0, 2.0, 9.0], list("abcx"))
    b = pd.Series([1.0, 2.0, 2.0, 9.0], list("cbay"))
    assert kendall(a, b) == pytest.approx(stats.kendalltau([3, 1, 2], [2, 2, 1]).statistic)
    assert np.isnan(kendall(a, b.iloc[:2]))


def test_means_over_contests_need_a_score_in_each() -> None:
    means = mean_over_contests([pd.Series({"a": 1.0, "b": 2.0}), pd.Series({"a": 3.0})])
    assert means.to_dict() == {"a": 2.0}
