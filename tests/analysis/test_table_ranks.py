"""Mean ranks over tables, compared with SciPy's tests and the table of Demšar (2006)."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.table_ranks import (
    critical_difference,
    mean_ranks,
    ranks_over_tables,
    table_metric,
    table_values,
)
from tests.analysis.hand_made import MODEL, ZERO


@pytest.mark.parametrize(("contestants", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_follow_from_the_published_critical_values(contestants: int, q: float) -> None:
    """The critical values q are from table 5 (a) of Demšar (2006)."""
    expected = q * math.sqrt(contestants * (contestants + 1) / (6 * 14))
    assert critical_difference(contestants, 14) == pytest.approx(expected, rel=3e-4)


def test_ranks_are_averaged_over_tables_and_contestants_are_sorted_from_best_to_worst() -> None:
    values = pd.DataFrame({"a": [0.9, 0.8, 0.7], "b": [0.9, 0.6, 0.8], "c": [0.1, 0.2, 0.3]})
    ranks = mean_ranks(values, "roc_auc")
    assert ranks.mean_rank.to_dict() == {"a": 1.5, "b": 1.5, "c": 3.0}
    assert list(ranks.scores) == ["a", "b", "c"]
    errors = mean_ranks(values, "crps")
    assert errors.mean_rank.to_dict() == {"a": 2.5, "b": 2.5, "c": 1.0}


def test_the_p_value_follows_from_the_corrected_friedman_statistic() -> None:
    values = pd.DataFrame(np.random.default_rng(0).normal([0, 0.2, 0.4, 1], size=(12, 4)))
    ranks = mean_ranks(values, "r_squared")
    chi_squared = stats.friedmanchisquare(*(values[name] for name in values)).statistic
    statistic = 11 * chi_squared / (12 * 3 - chi_squared)
    assert ranks.p == pytest.approx(stats.f.sf(statistic, 3, 33))


def test_a_single_table_has_no_critical_difference() -> None:
    ranks = mean_ranks(pd.DataFrame({"a": [1.0], "b": [2.0]}), "r_squared")
    assert math.isnan(ranks.critical_difference) and math.isnan(ranks.p)
    assert list(ranks.mean_rank.items()) == [("b", 1.0), ("a", 2.0)]


def test_contestants_without_a_score_on_every_table_are_not_ranked() -> None:
    ranks = mean_ranks(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, np.nan]}), "r_squared")
    assert list(ranks.mean_rank.index) == ["a"]


def test_the_tests_need_at_least_two_tables_and_two_contestants() -> None:
    """For two contestants, F = (N - 1) z² / (1 - z²), where z is the difference between the mean ranks."""
    assert critical_difference(2, 2) == pytest.approx(1.960 * math.sqrt(6 / 12), rel=3e-4)
    assert math.isnan(critical_difference(1, 5)) and math.isnan(critical_difference(5, 1))
    ranks = mean_ranks(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0]}), "r_squared")
    assert ranks.p == pytest.approx(1) and ranks.critical_difference == critical_difference(2, 2)
    single = mean_ranks(pd.DataFrame({"a": [1.0, 2.0]}), "r_squared")
    assert math.isnan(single.p) and math.isnan(single.critical_difference)
    three = mean_ranks(pd.DataFrame({"a": [1.0, 2.0, 2.0], "b": [2.0, 1.0, 1.0]}), "r_squared")
    assert three.p == pytest.approx(stats.f.sf(2 * (1 / 3) ** 2 / (1 - (1 / 3) ** 2), 1, 2))


def test_almost_equal_orders_have_a_positive_p() -> None:
    """The mean ranks of three tables are 7/6, 11/6 and 3. Friedman's statistic is 3 (ΣR² - 12) = 31/6."""
    values = pd.DataFrame({"a": [3.0, 3.0, 2.0], "b": [2.0, 2.0, 2.0], "c": [1.0, 1.0, 1.0]})
    ranks = mean_ranks(values, "r_squared")
    chi_squared = 3 * (sum((k / 6) ** 2 for k in (7, 11, 18)) - 12)
    assert ranks.p == pytest.approx(stats.f.sf(2 * chi_squared / (6 - chi_squared), 2, 4)) and chi_squared > 5


def test_p_is_0_if_the_order_of_contestants_is_the_same_on_all_tables() -> None:
    values = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]})
    assert mean_ranks(values, "r_squared").p == 0


def test_contestants_with_equal_mean_ranks_are_ordered_by_name() -> None:
    values = pd.DataFrame({"c": [1.0, 1.0], "b": [3.0, 2.0], "a": [2.0, 3.0]})
    ranks = mean_ranks(values, "r_squared")
    assert list(ranks.scores) == list(ranks.mean_rank.index) == ["a", "b", "c"] and ranks.metric == "r_squared"


TARGETS = {"evaluator": "targets", "metric": "roc_auc"}


def rows(*changes: dict[str, object]) -> pd.DataFrame:
    """Rows of two seeds of m on the tables x and y, of a baseline on x, and additional rows with these changes."""
    row = MODEL | TARGETS | {"axis": "stratum:x", "stratum": "x", "value": 0.5}
    on_y = row | {"axis": "stratum:y", "stratum": "y"}
    main_rows = [
        row,
        row | {"run": "m-s1", "value": 0.7},
        on_y | {"value": 0.9},
        on_y | {"run": "m-s1", "value": 0.3},
        row | {"run": "k", "contestant": "k", "kind": "baseline", "value": 0.2},
    ]
    return tables.frame("values", [*main_rows, *(row | change for change in changes)])


def test_the_values_of_tables_are_means_over_seeds() -> None:
    other_rows = rows(
        {"metric": "accuracy", "value": 9.0},
        {"axis": None, "stratum": None, "value": 9.0},
        {"axis": "n_context", "axis_value": 4, "stratum": None, "value": 9.0},
        {"run": "m-s2", "status": "failed", "reason": "r", "value": None},
        {"axis": "branch", "axis_value": 10, "value": 9.0},
    )
    for frame in (rows(), other_rows):
        values = table_values(frame, "roc_auc")
        assert values.index.tolist() == ["x", "y"] and values.columns.tolist() == ["k", "m"]
        assert values["m"].tolist() == pytest.approx([0.6, 0.6]) and values.dtypes.eq(float).all()
        assert values["k"].iloc[0] == 0.2 and math.isnan(values["k"].iloc[1])
    by_run = table_values(rows(), "roc_auc", "run")
    assert by_run.loc["x"].to_dict() == {"k": 0.2, "m-s0": 0.5, "m-s1": 0.7}
    assert table_values(rows(), "r_squared").empty and table_values(rows().iloc[:0], "roc_auc").empty


def test_contestants_without_values_on_all_tables_have_no_rank() -> None:
    ranks = ranks_over_tables(rows(), "roc_auc")
    assert ranks is not None and ranks.mean_rank.to_dict() == {"m": 1}
    by_run = ranks_over_tables(rows(), "roc_auc", "run")
    assert by_run is not None and by_run.mean_rank.to_dict() == {"m-s0": 1.5, "m-s1": 1.5}
    without_y = rows()[~rows()["run"].str.startswith("m") | rows()["stratum"].eq("y")]
    assert ranks_over_tables(without_y, "roc_auc") is None, "no contestant has values on both tables"
    assert ranks_over_tables(rows(), "r_squared") is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{}], "roc_auc"),
        ([{"metric": "r_squared"}], "r_squared"),
        ([{"metric": "r_squared"}, {}], "roc_auc"),
        ([{"metric": "accuracy"}], None),
        ([{"evaluator": "probe"}], None),
    ],
)
def test_the_metric_of_tables_is_one_that_was_measured_for_the_question_targets(
    changes: list[dict[str, object]], expected: str | None
) -> None:
    row = ZERO | TARGETS
    assert table_metric(tables.frame("values", [row | change for change in changes])) == expected
