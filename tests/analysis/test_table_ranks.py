"""Mean ranks over tables, compared with SciPy's tests and the table of Demšar (2006)."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.analysis.table_ranks import critical_difference, mean_ranks


@pytest.mark.parametrize(("contestants", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_has_the_published_critical_values(contestants: int, q: float) -> None:
    """Table 5 (a) of Demšar (2006)."""
    expected = q * math.sqrt(contestants * (contestants + 1) / (6 * 14))
    assert critical_difference(contestants, 14) == pytest.approx(expected, rel=3e-4)


def test_ranks_are_means_over_tables_and_the_best_is_first() -> None:
    values = pd.DataFrame({"a": [0.9, 0.8, 0.7], "b": [0.9, 0.6, 0.8], "c": [0.1, 0.2, 0.3]})
    ranks = mean_ranks(values, "roc_auc")
    assert ranks.mean_rank.to_dict() == {"a": 1.5, "b": 1.5, "c": 3.0}
    assert list(ranks.scores) == ["a", "b", "c"]
    errors = mean_ranks(values, "crps")
    assert errors.mean_rank.to_dict() == {"a": 2.5, "b": 2.5, "c": 1.0}


def test_the_p_value_is_that_of_the_corrected_friedman_statistic() -> None:
    values = pd.DataFrame(np.random.default_rng(0).normal([0, 0.2, 0.4, 1], size=(12, 4)))
    ranks = mean_ranks(values, "r_squared")
    chi_squared = stats.friedmanchisquare(*(values[name] for name in values)).statistic
    statistic = 11 * chi_squared / (12 * 3 - chi_squared)
    assert ranks.p == pytest.approx(stats.f.sf(statistic, 3, 33))


def test_a_single_table_has_no_critical_difference() -> None:
    ranks = mean_ranks(pd.DataFrame({"a": [1.0], "b": [2.0]}), "r_squared")
    assert math.isnan(ranks.critical_difference) and math.isnan(ranks.p)
    assert ranks.mean_rank.to_dict() == {"b": 1.0, "a": 2.0}


def test_contestants_that_lack_a_table_are_not_ranked() -> None:
    ranks = mean_ranks(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, np.nan]}), "r_squared")
    assert list(ranks.mean_rank.index) == ["a"]
