"""Bootstrap intervals against explicit resampling and the normal approximation."""

import numpy as np
import pytest

from iclbench.evaluation.bootstrap import bootstrap_interval, ratio_summary, resample_counts, summaries


def test_the_interval_equals_explicit_resampling_with_the_same_draws() -> None:
    errors = np.random.default_rng(0).gamma(1.0, size=(30, 4))
    low, high = bootstrap_interval(errors, seed=5, resamples=200)
    picks = np.random.default_rng(5).integers(30, size=(200, 30))
    means = np.stack([errors[row].mean(0) for row in picks])
    assert np.allclose(low, np.quantile(means, 0.025, axis=0))
    assert np.allclose(high, np.quantile(means, 0.975, axis=0))


def test_the_width_matches_the_normal_approximation_for_many_episodes() -> None:
    errors = np.random.default_rng(1).normal(2.0, 3.0, size=(4000, 2))
    low, high = bootstrap_interval(errors)
    half = 1.96 * errors.std(0) / np.sqrt(4000)
    assert np.allclose(high - low, 2 * half, rtol=0.15)
    assert ((low < errors.mean(0)) & (errors.mean(0) < high)).all()


@pytest.mark.parametrize(("tables", "coverage"), [(3, 0.75), (4, 0.80)])
def test_intervals_over_few_tables_have_the_coverage_on_the_cards_of_real_tables(tables: int, coverage: float) -> None:
    means = np.random.default_rng(0).normal(size=(tables, 4000))
    low, high = bootstrap_interval(means.repeat(2, 0), clusters=np.arange(tables).repeat(2))
    assert ((low <= 0) & (high >= 0)).mean() == pytest.approx(coverage, abs=0.02)


def test_unscored_positions_are_ignored() -> None:
    errors = np.random.default_rng(2).normal(size=(50, 3))
    errors[:, 1] = np.nan
    errors[:10, 2] = np.nan
    low, high = bootstrap_interval(errors)
    assert np.isnan(low[1]) and np.isnan(high[1])
    assert low[2] < np.nanmean(errors[:, 2]) < high[2]


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_interval_equals_explicit_resampling_with_unscored_episodes(level: float) -> None:
    errors = np.random.default_rng(3).gamma(1.0, size=(6, 2)) - 3.0
    errors[:2, 1] = np.nan
    picks = np.random.default_rng(0).integers(6, size=(300, 6))
    scored = np.isfinite(errors[picks][..., 1]).sum(1)
    assert scored.min() == 1, "all resamples have a scored episode, and some have only one"
    means = np.nanmean(errors[picks], axis=1)
    low, high = bootstrap_interval(errors, seed=0, resamples=300, level=level)
    assert np.allclose(low, np.quantile(means, 0.5 - level / 2, axis=0))
    assert np.allclose(high, np.quantile(means, 0.5 + level / 2, axis=0))


def test_the_interval_is_undefined_if_a_resample_has_no_scored_episode() -> None:
    errors = np.array([[1.0], [2.0], [np.nan], [np.nan], [np.nan], [np.nan]])
    assert np.isnan(bootstrap_interval(errors)).all()


def test_a_resample_has_as_many_episodes_as_the_sample() -> None:
    for seed in range(6):
        counts = resample_counts(3, seed, resamples=5)
        assert counts.shape == (5, 3) and (counts.sum(1) == 3).all()
    assert (resample_counts(3) == resample_counts(3, 0)).all()


def test_the_same_seed_gives_the_same_interval() -> None:
    errors = np.random.default_rng(4).gamma(1.0, size=(20, 1))
    assert bootstrap_interval(errors) == bootstrap_interval(errors, seed=0)
    (summary,) = summaries(errors, seed=5)
    assert (summary["low"], summary["high"]) == tuple(float(end[0]) for end in bootstrap_interval(errors, seed=5))
    assert (summary["low"], summary["high"]) != tuple(float(end[0]) for end in bootstrap_interval(errors, seed=6))
    (two,) = summaries(np.array([[1.0], [2.0]]), seed=0)
    assert (two["low"], two["high"], two["n_episodes"]) == (1.0, 2.0, 2)


def test_a_single_episode_has_a_mean_and_no_interval() -> None:
    (single,) = summaries(np.array([[0.7]]), seed=0)
    assert (single["value"], single["n_episodes"]) == (0.7, 1)
    assert np.isnan([single["low"], single["high"]]).all()
    several, one, none = summaries(np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [2.0, np.nan, np.nan]]), seed=0)
    assert several["value"] == pytest.approx(2) and several["low"] < 2 < several["high"]
    assert (one["value"], one["n_episodes"]) == (5, 1) and np.isnan([one["low"], one["high"]]).all()
    assert none["n_episodes"] == 0


def test_the_interval_of_a_mean_per_event_resamples_episodes() -> None:
    draw = np.random.default_rng(6)
    totals, counts = draw.gamma(2.0, size=12), draw.integers(1, 9, 12)
    picks = np.random.default_rng(3).integers(12, size=(1000, 12))
    ratios = totals[picks].sum(1) / counts[picks].sum(1)
    summary = ratio_summary(totals, counts, seed=3)
    assert summary["value"] == pytest.approx(totals.sum() / counts.sum())
    assert (summary["low"], summary["high"]) == pytest.approx(tuple(np.quantile(ratios, [0.025, 0.975])))
    assert summary["n_episodes"] == 12


def test_resamples_without_events_do_not_raise() -> None:
    """An episode without events can have a nonzero loss, because of the open interval at the end of its window."""
    summary = ratio_summary(np.array([1.0, 2.0]), np.array([0, 2]), seed=0)
    assert summary["value"] == 1.5 and summary["low"] == 1.0
