"""Paired differences compared with SciPy, and shared ranks."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import (
    Difference,
    difference,
    holm,
    mean_ranks,
    mean_with_interval,
    ranks,
    score_difference,
    welch,
    welch_p,
)
from iclbench.tables.curves import MEAN_HEIGHT, mean_heights


def _errors(mean: float, seed: int, sizes: tuple[int, ...] = (0, 1, 2, 4)) -> pd.DataFrame:
    """Errors of 100 episodes; the difficulty of an episode is the same for all contestants."""
    difficulty = np.random.default_rng(0).gamma(2.0, 1.0, (100, 1))
    noise = np.random.default_rng(seed).normal(0, 0.1, (100, len(sizes)))
    return pd.DataFrame(mean + difficulty + noise, columns=pd.Index(sizes, name="n_context"))


def test_the_interval_equals_that_of_scipys_paired_t_test() -> None:
    a, b = _errors(1.0, 1), _errors(1.02, 2)
    # Trapezoids over 0, 1, 2, 4: weights 1/2, 1, 3/2, 1 over a range of 4.
    weights = np.array([0.5, 1.0, 1.5, 1.0]) / 4
    interval = stats.ttest_rel(a.to_numpy() @ weights, b.to_numpy() @ weights).confidence_interval(0.95)
    gap = difference(a, b)
    assert gap is not None
    assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert gap.value == pytest.approx(((a - b).to_numpy() @ weights).mean(), rel=1e-12)


def test_welchs_interval_follows_its_equation_and_has_width_0_for_constant_samples() -> None:
    """The degrees of freedom are those of Welch and Satterthwaite. Exchanging the samples reverses the interval."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(1, 1, 5), rng.normal(0, 3, 8)
    errors = a.var(ddof=1) / 5, b.var(ddof=1) / 8
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 4 + errors[1] ** 2 / 7)
    interval, p = welch(a, b, 0.9)
    half = stats.t.ppf(0.95, freedom) * np.sqrt(sum(errors))
    mean = a.mean() - b.mean()
    assert (interval.value, interval.low, interval.high) == pytest.approx((mean, mean - half, mean + half))
    assert p == pytest.approx(2 * stats.t.sf(abs(mean) / np.sqrt(sum(errors)), freedom))
    reverse, same_p = welch(b, a, 0.9)
    assert (reverse.low, reverse.high, same_p) == pytest.approx((-interval.high, -interval.low, p))
    constant, constant_p = welch(np.full(3, 2.0), np.full(3, 1.0))
    assert (constant.low, constant.high, constant_p) == (1, 1, 0) and welch(np.ones(3), np.ones(3))[1] == 1


def test_p_values_from_moments_equal_those_from_samples() -> None:
    rng = np.random.default_rng(4)
    pairs = [(rng.normal(0, 1, 3), rng.normal(mean, 2, 5)) for mean in (0.0, 1.0, 4.0)]
    means, sds, counts = ([np.array([f(pair[i]) for pair in pairs]) for i in (0, 1)] for f in (np.mean, _sd, len))
    p = welch_p(tuple(means), tuple(sds), tuple(counts))
    np.testing.assert_allclose(p, [welch(a, b)[1] for a, b in pairs], rtol=1e-10)
    assert welch_p((2.0, 1.0), (0.0, 0.0), (3, 3)) == 0 and np.isnan(welch_p((1.0, 1.0), (0.0, 0.0), (3, 3)))


def _sd(values: np.ndarray) -> float:
    return float(values.std(ddof=1))


def test_mean_ranks_are_over_the_rows_with_a_score() -> None:
    scores = pd.DataFrame({"a": [3.0, 1.0, 5.0], "b": [2.0, 1.0, None], "c": [1.0, None, 7.0]})
    assert mean_ranks(scores).to_dict() == {"a": (1 + 1.5 + 2) / 3, "b": (2 + 1.5) / 2, "c": (3 + 1) / 2}
    assert mean_ranks(scores, lower_is_better=True)["c"] == (1 + 2) / 2


def test_a_paired_difference_is_significant_although_separate_intervals_overlap() -> None:
    a, b = _errors(1.0, 1), _errors(1.05, 2)
    separate = [stats.t.interval(0.95, 99, x.mean(), stats.sem(x)) for x in (a.mean(axis=1), b.mean(axis=1))]
    assert separate[0][1] > separate[1][0]
    gap = difference(b, a)
    assert gap is not None and gap.low > 0 and gap.is_significant


def test_only_common_episodes_and_context_sizes_are_compared() -> None:
    a, b = _errors(1.0, 1), _errors(1.0, 2)
    assert difference(a, b.iloc[::-1][[4, 0]]) == difference(a[[0, 4]], b[[0, 4]])
    gap = difference(a, b[[0, 4]])
    assert gap is not None and gap.value == pytest.approx((a - b)[[0, 4]].to_numpy().mean())
    gap = difference(a.iloc[:2], b[[0, 4]])
    assert gap is not None and gap.value == pytest.approx((a - b)[[0, 4]].iloc[:2].to_numpy().mean())
    assert difference(a[[0]], b) is None
    assert difference(a.iloc[:1], b) is None
    assert difference(a, b.set_index(b.index + 1000)) is None


def test_only_equal_contestants_share_a_rank() -> None:
    equal_errors = _errors(1.0, 1)
    episodes = {"a": equal_errors, "b": equal_errors.copy(), "c": _errors(2.0, 3), "d": _errors(2.001, 4)}
    assert ranks(["a", "b", "c", "d"], episodes) == {"a": 1, "b": 1, "c": 3, "d": 3}


def test_a_chain_of_small_differences_is_not_one_shared_rank() -> None:
    mean = _errors(0.0, 0).mean().mean()
    # Means are 0.01 apart and paired intervals are about ±0.015, so only neighbours do not differ significantly.
    episodes = {name: (e := _errors(0.0, i + 1)) - e.mean() + mean + 0.01 * i for i, name in enumerate("abcdef")}
    assert ranks(list("abcdef"), episodes) == {"a": 1, "b": 1, "c": 3, "d": 3, "e": 5, "f": 5}


def test_contestants_without_scores_of_episodes_do_not_share_ranks() -> None:
    assert ranks(["a", "b", "c"], {"a": _errors(1.0, 1), "b": None}) == {"a": 1, "b": 2, "c": 3}


def test_all_events_of_sequences_of_different_lengths_have_the_same_weight() -> None:
    lengths = np.random.default_rng(3).integers(1, 6, 40)
    is_event = np.arange(5) < lengths[:, None]
    sizes = pd.Index(range(5), name="n_context")
    curves = {}
    for run, seed in {"a": 1, "b": 2}.items():
        scores = np.random.default_rng(seed).normal(size=(40, 5))
        episodes, positions = np.nonzero(is_event)
        rows = pd.DataFrame(
            {"run": run, "prompt_set": "p", "metric": "nll", "n_context": sizes[positions].astype("Int64")}
        )
        rows = rows.assign(n_related=pd.NA, episode=episodes, value=scores[is_event])
        curves[run] = EpisodeScores([tables.frame("errors", rows)], {"p"}).curves([run], "p", "nll")
    a, b = (curves[run].to_numpy() for run in "ab")
    gap = difference(curves["a"], curves["b"])
    assert gap is not None
    assert gap.value == pytest.approx((a - b)[is_event].mean(), rel=1e-12)
    assert gap.low < gap.value < gap.high


def test_curves_and_packed_mean_heights_can_be_averaged() -> None:
    local, packed = (_errors(1.0, seed, tuple(range(13))) for seed in (1, 2))
    areas = [np.trapezoid(curves, axis=1) / 12 for curves in (local, packed)]
    rows = [
        {"run": "local", "n_context": n, "episode": i, "value": v}
        for n, scores in local.items()
        for i, v in enumerate(scores)
    ]
    rows += [{"run": "packed", "n_context": None, "episode": i, "value": v} for i, v in enumerate(areas[1])]
    shared = {"prompt_set": "p", "metric": "squared_error"}
    frame = tables.frame("errors", [shared | row for row in rows])
    mean = EpisodeScores([frame], {"p"}).curves(["local", "packed"], "p", "squared_error")
    assert mean is not None and mean.columns.tolist() == [MEAN_HEIGHT]
    assert mean[MEAN_HEIGHT].tolist() == pytest.approx(np.mean(areas, axis=0).tolist())


def test_an_interval_that_touches_0_is_not_significant() -> None:
    intervals = [(0.0, 2.0), (-2.0, 0.0), (-1.0, 1.0), (0.1, 2.0), (-2.0, -0.1)]
    significant = [Difference((low + high) / 2, low, high).is_significant for low, high in intervals]
    assert significant == [False, False, False, True, True]


def test_intervals_have_the_requested_level() -> None:
    a, b = _errors(1.0, 1), _errors(1.02, 2)
    gaps = mean_heights(a) - mean_heights(b)
    shuffled, a_heights = mean_heights(b).iloc[::-1], mean_heights(a)
    for level in (0.9, 0.99):
        expected = stats.t.interval(level, 99, gaps.mean(), stats.sem(gaps))
        for gap in (difference(a, b, level), score_difference(a_heights, shuffled, level)):
            assert gap is not None and gap.value == pytest.approx(gaps.mean())
            assert (gap.low, gap.high) == pytest.approx(expected)
    assert score_difference(a_heights, shuffled) == score_difference(a_heights, shuffled, 0.95)
    assert difference(a, b) == difference(a, b, 0.95)
    assert mean_with_interval(gaps.to_numpy()) == mean_with_interval(gaps.to_numpy(), 0.95)
    samples = a_heights.to_numpy(), shuffled.to_numpy()
    assert welch(*samples) == welch(*samples, 0.95)


def test_scores_are_paired_by_common_episodes() -> None:
    a, b = pd.Series([1.0, 5.0, 2.0], [0, 1, 2]), pd.Series([9.0, 0.5, 3.0], [7, 2, 1])
    gap = score_difference(a, b)
    assert gap is not None and gap.value == pytest.approx((5.0 - 3.0 + 2.0 - 0.5) / 2)
    assert score_difference(a, b.iloc[:2]) is None


def test_episodes_without_a_mean_height_are_not_compared() -> None:
    heights = pd.DataFrame({MEAN_HEIGHT: [1.0, np.nan, 3.0, 5.0]})
    gap = difference(heights, pd.DataFrame({0: [0.0] * 4, 1: [0.0, 0.0, 2.0, 0.0]}))
    assert gap is not None and gap.value == pytest.approx((1.0 + 2.0 + 5.0) / 3)
    reverse = difference(pd.DataFrame({0: [0.0] * 4, 1: [0.0, 0.0, 2.0, 0.0]}), heights)
    assert reverse is not None and (reverse.value, reverse.low) == pytest.approx((-gap.value, -gap.high))


def test_samples_with_equal_means_have_p_1() -> None:
    gap, p = welch(np.array([1.0, 3.0]), np.array([0.0, 4.0, 2.0]))
    assert (gap.value, p) == (0, pytest.approx(1)) and gap.low < 0 < gap.high
    same_spread, _ = welch(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
    assert same_spread.low < same_spread.value == -1 < same_spread.high


def test_holm_stops_at_the_first_p_value_above_the_level() -> None:
    assert holm([0.04, 0.01, 0.02, 0.5]) == pytest.approx([0.08, 0.04, 0.06, 0.5])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
