"""Bootstrap intervals against explicit resampling and against the normal approximation."""

import numpy as np
import pytest

from iclbench.evaluation.bootstrap import bootstrap_interval, summaries


def test_equals_explicit_resampling_with_the_same_draws() -> None:
    errors = np.random.default_rng(0).gamma(1.0, size=(30, 4))
    low, high = bootstrap_interval(errors, seed=5, resamples=200)
    picks = np.random.default_rng(5).integers(30, size=(200, 30))
    means = np.stack([errors[row].mean(0) for row in picks])
    assert np.allclose(low, np.quantile(means, 0.025, axis=0))
    assert np.allclose(high, np.quantile(means, 0.975, axis=0))


def test_width_matches_the_normal_approximation_for_many_episodes() -> None:
    errors = np.random.default_rng(1).normal(2.0, 3.0, size=(4000, 2))
    low, high = bootstrap_interval(errors)
    half = 1.96 * errors.std(0) / np.sqrt(4000)
    assert np.allclose(high - low, 2 * half, rtol=0.15)
    assert ((low < errors.mean(0)) & (errors.mean(0) < high)).all()


def test_unscored_positions_are_left_out() -> None:
    errors = np.random.default_rng(2).normal(size=(50, 3))
    errors[:, 1] = np.nan
    errors[:10, 2] = np.nan
    low, high = bootstrap_interval(errors)
    assert np.isnan(low[1]) and np.isnan(high[1])
    assert low[2] < np.nanmean(errors[:, 2]) < high[2]


def test_a_single_episode_has_a_mean_and_no_interval() -> None:
    (alone,) = summaries(np.array([[0.7]]), seed=0)
    assert (alone["value"], alone["n_episodes"]) == (0.7, 1)
    assert np.isnan([alone["low"], alone["high"]]).all()
    several, one, none = summaries(np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [2.0, np.nan, np.nan]]), seed=0)
    assert several["value"] == pytest.approx(2) and several["low"] < 2 < several["high"]
    assert (one["value"], one["n_episodes"]) == (5, 1) and np.isnan([one["low"], one["high"]]).all()
    assert none["n_episodes"] == 0
