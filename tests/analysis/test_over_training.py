"""Scores at equal computation and agreement of orders, against SciPy and interpolation by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.analysis.over_training import at_compute, kendall, mean_over, shared_compute

TRAINED = pd.DataFrame(
    {
        "contestant": ["a", "a", "a", "b", "b"],
        "flops": [100.0, 400.0, 200.0, 300.0, 600.0],
        "value": [0.1, 0.9, 0.5, 0.3, 0.6],
    }
)


def test_scores_between_two_runs_are_linear_in_the_logarithm_of_operations() -> None:
    scores = at_compute(TRAINED, 300.0)
    share = (math.log(300) - math.log(200)) / (math.log(400) - math.log(200))
    assert scores["a"] == pytest.approx(0.5 + share * 0.4) and scores["b"] == pytest.approx(0.3)


def test_scores_are_not_extrapolated() -> None:
    assert set(at_compute(TRAINED, 200.0).index) == {"a"}
    assert set(at_compute(TRAINED, 500.0).index) == {"b"}
    assert at_compute(TRAINED, 50.0).empty
    assert at_compute(TRAINED, 400.0)["a"] == pytest.approx(0.9)


def test_the_shared_computation_is_the_smallest_of_the_longest_runs() -> None:
    assert shared_compute(TRAINED) == 400.0


def test_kendall_is_scipys_tau_over_common_contestants() -> None:
    a = pd.Series([3.0, 1.0, 2.0, 9.0], list("abcx"))
    b = pd.Series([1.0, 2.0, 2.0, 9.0], list("cbay"))
    assert kendall(a, b) == pytest.approx(stats.kendalltau([3, 1, 2], [2, 2, 1]).statistic)
    assert np.isnan(kendall(a, b.iloc[:2]))


def test_means_over_contests_need_a_score_in_each() -> None:
    means = mean_over([pd.Series({"a": 1.0, "b": 2.0}), pd.Series({"a": 3.0})])
    assert means.to_dict() == {"a": 2.0}
