"""Paired differences against SciPy, and ranks that admit ties."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import difference, ranks
from iclbench.tables.curves import AREA


def _errors(mean: float, seed: int, sizes: tuple[int, ...] = (0, 1, 2, 4)) -> pd.DataFrame:
    """100 episodes; what makes an episode hard is common to all contestants."""
    hard = np.random.default_rng(0).gamma(2.0, 1.0, (100, 1))
    own = np.random.default_rng(seed).normal(0, 0.1, (100, len(sizes)))
    return pd.DataFrame(mean + hard + own, columns=pd.Index(sizes, name="n_context"))


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    a, b = _errors(1.0, 1), _errors(1.02, 2)
    # Trapezoids over 0, 1, 2, 4: weights 1/2, 1, 3/2, 1 over a range of 4.
    weights = np.array([0.5, 1.0, 1.5, 1.0]) / 4
    interval = stats.ttest_rel(a.to_numpy() @ weights, b.to_numpy() @ weights).confidence_interval(0.95)
    found = difference(a, b)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert found.value == pytest.approx(((a - b).to_numpy() @ weights).mean(), rel=1e-12)


def test_pairing_sees_what_separate_intervals_hide() -> None:
    a, b = _errors(1.0, 1), _errors(1.05, 2)
    separate = [stats.t.interval(0.95, 99, x.mean(), stats.sem(x)) for x in (a.mean(axis=1), b.mean(axis=1))]
    assert separate[0][1] > separate[1][0], "the intervals of the means overlap"
    found = difference(b, a)
    assert found is not None
    assert found.low > 0


def test_only_common_episodes_and_sizes_count() -> None:
    a, b = _errors(1.0, 1), _errors(1.0, 2)
    assert difference(a, b.iloc[::-1][[4, 0]]) == difference(a[[0, 4]], b[[0, 4]])
    assert difference(a[[0]], b) is None
    assert difference(a.iloc[:1], b) is None
    assert difference(a, b.set_index(b.index + 1000)) is None


def test_equal_contestants_tie_and_different_ones_do_not() -> None:
    same = _errors(1.0, 1)
    episodes = {"a": same, "b": same.copy(), "c": _errors(2.0, 3), "d": _errors(2.001, 4)}
    assert ranks(["a", "b", "c", "d"], episodes) == {"a": 1, "b": 1, "c": 3, "d": 3}


def test_a_chain_of_small_steps_does_not_end_in_one_rank() -> None:
    level = _errors(0.0, 0).mean().mean()
    # Means exactly 0.01 apart, paired intervals about 0.015 to either side: neighbours tie, next neighbours do not.
    episodes = {name: (e := _errors(0.0, i + 1)) - e.mean() + level + 0.01 * i for i, name in enumerate("abcdef")}
    assert ranks(list("abcdef"), episodes) == {"a": 1, "b": 1, "c": 3, "d": 3, "e": 5, "f": 5}


def test_without_episodes_nobody_is_tied() -> None:
    assert ranks(["a", "b", "c"], {"a": _errors(1.0, 1), "b": None}) == {"a": 1, "b": 2, "c": 3}


def test_of_sequences_that_end_early_every_event_counts_as_much() -> None:
    lengths = np.random.default_rng(3).integers(1, 6, 40)
    there = np.arange(5) < lengths[:, None]
    sizes = pd.Index(range(5), name="n_context")
    curves = {}
    for run, seed in {"a": 1, "b": 2}.items():
        scores = np.random.default_rng(seed).normal(size=(40, 5))
        at = np.nonzero(there)
        rows = pd.DataFrame(
            {"run": run, "prompt_set": "own", "metric": "nll", "n_context": sizes[at[1]].astype("Int64")}
        )
        rows = rows.assign(n_related=pd.NA, episode=at[0], value=scores[at])
        curves[run] = EpisodeScores([tables.frame("errors", rows)], {"own"}).curves([run], "own", "nll")
    a, b = (curves[run].to_numpy() for run in "ab")
    found = difference(curves["a"], curves["b"])
    assert found is not None
    assert found.value == pytest.approx((a - b)[there].mean(), rel=1e-12)
    assert found.low < found.value < found.high


def test_own_curves_and_packed_heights_are_averaged_by_height() -> None:
    own, packed = (_errors(1.0, seed, tuple(range(13))) for seed in (1, 2))
    areas = [np.trapezoid(curves, axis=1) / 12 for curves in (own, packed)]
    rows = [
        {"run": "own", "n_context": n, "episode": i, "value": v}
        for n, scores in own.items()
        for i, v in enumerate(scores)
    ]
    rows += [{"run": "packed", "n_context": None, "episode": i, "value": v} for i, v in enumerate(areas[1])]
    shared = {"prompt_set": "p", "metric": "squared_error"}
    frame = tables.frame("errors", [shared | row for row in rows])
    mean = EpisodeScores([frame], {"p"}).curves(["own", "packed"], "p", "squared_error")
    assert mean is not None and mean.columns.tolist() == [AREA]
    assert mean[AREA].tolist() == pytest.approx(np.mean(areas, axis=0).tolist())
