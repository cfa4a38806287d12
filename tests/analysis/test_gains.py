"""Gains from related datasets: paired differences, their median, and the share of the most influential episode."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.analysis.gains import Gain, gain, gains

WITH_RELATED = pd.Series([1.0, 2.0, 4.0, 3.0], [0, 1, 2, 3])
WITHOUT_RELATED = pd.Series([0.5, 2.5, 1.0, 2.0, 9.0], [0, 1, 2, 3, 4])


def test_a_gain_is_the_mean_paired_difference_with_students_interval() -> None:
    result, by_episode = gain(WITH_RELATED, WITHOUT_RELATED), np.array([0.5, -0.5, 3.0, 1.0])
    assert result is not None
    low, high = stats.t.interval(0.95, 3, by_episode.mean(), stats.sem(by_episode))
    assert (result.value, result.low, result.high) == pytest.approx((by_episode.mean(), low, high))
    assert result.median == pytest.approx(0.75) and result.largest_share == pytest.approx(3.0 / 4.0)
    assert "accounts for 75%" in result.line
    zero = gain(WITH_RELATED, WITH_RELATED - [0.0, 0.0, 0.0, 1.0])
    assert zero is not None and (zero.value, zero.median) == (0.25, 0)


def test_the_share_of_an_episode_is_negative_if_its_sign_is_opposite_to_the_sum() -> None:
    result = gain(pd.Series([1.0, 1.0, -1.5, 1.0]), pd.Series(np.zeros(4)))
    assert result is not None and result.largest_share == pytest.approx(-1.0)
    assert "offsets 100%" in result.line


def test_the_message_distinguishes_positive_from_negative_shares() -> None:
    result = gain(WITH_RELATED, WITHOUT_RELATED)
    assert result is not None and result.line != replace(result, largest_share=-result.largest_share).line


def test_the_share_of_an_episode_is_infinite_if_gains_sum_to_0() -> None:
    result = gain(pd.Series([1.0, -1.0]), pd.Series([0.0, 0.0]))
    assert result is not None and result.largest_share == np.inf and result.value == 0


def test_the_message_omits_small_shares() -> None:
    result = gain(pd.Series(np.ones(20)), pd.Series(np.zeros(20)))
    assert result is not None and result.largest_share == pytest.approx(0.05) and "%" not in result.line


def test_equal_scores_and_single_episodes_have_no_gain() -> None:
    assert gain(WITH_RELATED, WITH_RELATED) is None
    assert gain(WITH_RELATED.iloc[:1], WITHOUT_RELATED) is None


def test_gains_compare_each_number_of_related_datasets_with_no_related_datasets() -> None:
    likelihoods = {
        ("a", 0): WITHOUT_RELATED,
        ("a", 1): WITH_RELATED,
        ("a", 2): WITH_RELATED + 1,
        ("b", 1): WITH_RELATED,
    }
    by_contestant = gains(lambda name, n: likelihoods.get((name, n)), {"a": 2, "b": 1, "c": 0})
    assert set(by_contestant) == {("a", 1), ("a", 2)}
    assert by_contestant["a", 2].value == pytest.approx(by_contestant["a", 1].value + 1)


def test_the_message_contains_the_mean_its_interval_and_the_median() -> None:
    result = Gain(0.25, -0.125, 0.625, 0.5, 0.05)
    numbers = ("+0.250 [", "[-0.125", "+0.625]", "+0.500")
    assert all(number in result.line for number in numbers) and result.line.endswith("+0.500")
    for share, percent in ((0.1, "10%"), (-0.1, "10%"), (0.09, None), (-0.09, None), (-0.4, "40%")):
        line = replace(result, largest_share=share).line
        assert (percent is None and "%" not in line) or (percent is not None and f" {percent}" in line)


def test_numbers_of_related_datasets_without_a_gain_are_omitted() -> None:
    likelihoods = {
        ("a", 0): WITH_RELATED,
        ("a", 1): WITH_RELATED,
        ("a", 3): WITHOUT_RELATED,
        ("a", 5): WITHOUT_RELATED,
        ("b", 0): WITHOUT_RELATED,
    }
    assert set(gains(lambda name, n: likelihoods.get((name, n)), {"a": 4, "b": 2})) == {("a", 3)}
