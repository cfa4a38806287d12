"""What tells contestants apart: closed forms."""

import math

import numpy as np
import pandas as pd
import pytest

from iclbench.analysis.separation import separation


def scores(runs: dict[str, list[float]]) -> pd.Series:
    rows = [(name, f"{name}-{seed}", value) for name, own in runs.items() for seed, value in enumerate(own)]
    return pd.DataFrame(rows, columns=["contestant", "run", "value"]).set_index(["contestant", "run"])["value"]


def test_gaps_are_between_quartiles_without_best_and_worst_and_seeds_are_pooled() -> None:
    """Means 0, 1, ..., 6: of 1 to 5 the quartiles are a step apart; pairs of seeds 2 d apart have the variance 2 d²."""
    half = [9.0, 0.1, 0.2, 0.3, 0.1, 0.2, 9.0]  # the first and last count for nothing
    found = separation(scores({str(mean): [mean - d, mean + d] for mean, d in enumerate(half)}))
    assert found is not None
    assert (found.contestants, found.gap) == (7, pytest.approx(1.0))
    assert found.sd == pytest.approx(math.sqrt(2 * np.mean(np.square(half[1:-1]))))
    assert found.ratio == pytest.approx(found.gap / found.sd) and found.tells


def test_a_median_gap_is_not_that_of_one_who_is_far_ahead() -> None:
    found = separation(scores({str(mean): [mean, mean + 0.1] for mean in (0, 1.00, 1.01, 1.02, 1.03, 50, 99)}))
    assert found is not None and found.gap == pytest.approx(0.01) and not found.tells


def test_single_runs_say_nothing_of_seeds_and_few_contestants_nothing_at_all() -> None:
    alone = separation(scores({str(mean): [float(mean)] for mean in range(6)}))
    assert alone is not None and math.isnan(alone.sd) and not alone.tells
    mixed = separation(scores({str(mean): [mean, mean + 0.1][: 1 + mean % 2] for mean in range(6)}))
    assert mixed is not None and mixed.sd == pytest.approx(0.1 / math.sqrt(2))
    assert separation(scores({str(mean): [mean, mean] for mean in range(4)})) is None


def test_scores_that_are_all_alike_tell_nobody_apart() -> None:
    found = separation(scores({name: [1.0, 1.0] for name in "abcdef"}))
    assert found is not None and found.ratio == 0 and not found.tells
