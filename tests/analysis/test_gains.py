"""Gains from related datasets: paired by episode, with the median and the share of the largest episode."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.analysis.gains import gain, gains

MORE = pd.Series([1.0, 2.0, 4.0, 3.0], [0, 1, 2, 3])
LESS = pd.Series([0.5, 2.5, 1.0, 2.0, 9.0], [0, 1, 2, 3, 4])


def test_a_gain_is_the_paired_mean_with_students_interval() -> None:
    found, by_episode = gain(MORE, LESS), np.array([0.5, -0.5, 3.0, 1.0])
    assert found is not None
    low, high = stats.t.interval(0.95, 3, by_episode.mean(), stats.sem(by_episode))
    assert (found.value, found.low, found.high) == pytest.approx((by_episode.mean(), low, high))
    assert found.median == pytest.approx(0.75) and found.largest == pytest.approx(3.0 / 4.0)
    assert "75%" in found.line


def test_an_episode_against_the_sum_has_a_negative_share() -> None:
    found = gain(pd.Series([1.0, 1.0, -1.5, 1.0]), pd.Series(np.zeros(4)))
    assert found is not None and found.largest == pytest.approx(-1.0)
    assert "takes off 100%" in found.line


def test_gains_that_cancel_have_no_share() -> None:
    found = gain(pd.Series([1.0, -1.0]), pd.Series([0.0, 0.0]))
    assert found is not None and found.largest == np.inf and found.value == 0


def test_a_small_share_is_not_named() -> None:
    found = gain(pd.Series(np.ones(20)), pd.Series(np.zeros(20)))
    assert found is not None and found.largest == pytest.approx(0.05) and "episode" not in found.line


def test_equal_scores_and_single_episodes_have_no_gain() -> None:
    assert gain(MORE, MORE) is None
    assert gain(MORE.iloc[:1], LESS) is None


def test_gains_are_of_each_number_of_related_datasets_against_none() -> None:
    scores = {("a", 0): LESS, ("a", 1): MORE, ("a", 2): MORE + 1, ("b", 1): MORE}
    found = gains(lambda name, n: scores.get((name, n)), {"a": 2, "b": 1, "c": 0})
    assert set(found) == {("a", 1), ("a", 2)}
    assert found["a", 2].value == pytest.approx(found["a", 1].value + 1)
