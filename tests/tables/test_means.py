"""Means over seeds against NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.tables.means import over_seeds, student, unfailed

ACCURACIES = [0.91, 0.99, 0.98]


def runs(**columns: list[object]) -> pd.DataFrame:
    """Two runs of one contestant and one of another."""
    rows = {"contestant": ["gpt2", "gpt2", "s4"], "run": ["gpt2-s1", "gpt2-s0", "s4-s0"], "value": [3.0, 1.0, 5.0]}
    ends = {"low": [2.0, 0.5, 4.0], "high": [4.0, 1.5, 6.0], "n_episodes": [64, 32, 64]}
    return pd.DataFrame(rows | ends | columns)


def sets(values: list[float], **columns: object) -> pd.DataFrame:
    """A language model's accuracy with each of some sets of demonstrations."""
    rows = {"metric": "accuracy", "demo_seed": range(len(values)), "value": values}
    ends = {"low": np.subtract(values, 0.3), "high": np.add(values, 0.3), "n_episodes": 40, "run": "lm"}
    return pd.DataFrame(rows | ends | columns)


def test_runs_have_the_envelope_of_their_intervals_and_as_many_episodes_as_each_has() -> None:
    gpt2, s4 = over_seeds(runs(), ["contestant"]).to_dict("records")
    assert (gpt2["value"], gpt2["low"], gpt2["high"], gpt2["n_episodes"]) == (2.0, 0.5, 4.0, 32)
    assert (gpt2["lowest"], gpt2["highest"], gpt2["sd"]) == (1.0, 3.0, pytest.approx(np.std([1.0, 3.0], ddof=1)))
    assert (gpt2["runs"], gpt2["run"]) == (2, "gpt2-s0; gpt2-s1")
    assert (s4["value"], s4["low"], s4["high"], s4["runs"], s4["run"]) == (5.0, 4.0, 6.0, 1, "s4-s0")


def test_rows_that_stand_alone_are_what_they_are_among_others_that_do_not() -> None:
    rows = runs()
    alone = over_seeds(rows, ["contestant", "run"])
    assert alone["value"].tolist() == [1.0, 3.0, 5.0] and alone["runs"].eq(1).all()
    one = over_seeds(rows.iloc[2:], ["contestant"])
    pd.testing.assert_frame_equal(one, over_seeds(rows, ["contestant"]).iloc[1:].reset_index(drop=True))


def test_missing_values_are_a_key_and_costs_have_no_interval() -> None:
    costs = runs(n_points=[8, 8, None]).drop(columns=["low", "high"])
    found = over_seeds(costs, ["contestant", "n_points", "n_episodes"])
    assert len(found) == 3 and "low" not in found
    assert over_seeds(costs.drop(columns="n_episodes"), ["n_points"])["value"].tolist() == [2.0, 5.0]


def test_sets_of_demonstrations_have_students_interval_within_what_a_share_can_be() -> None:
    (row,) = over_seeds(sets(ACCURACIES), ["metric"], "demo_seed").to_dict("records")
    expected = stats.ttest_1samp(ACCURACIES, 0).confidence_interval(0.95)
    assert expected.high > 1
    assert (row["value"], row["low"], row["high"]) == pytest.approx((np.mean(ACCURACIES), expected.low, 1.0))
    assert row["demo_seeds"] == 3
    (loss,) = over_seeds(sets(ACCURACIES, metric="cross_entropy"), ["metric"], "demo_seed").to_dict("records")
    assert (loss["low"], loss["high"]) == pytest.approx(tuple(expected))


def test_a_single_set_has_its_own_interval() -> None:
    both = pd.concat([sets(ACCURACIES), sets([0.5]).assign(metric="accuracy_first_token")], ignore_index=True)
    for rows in (both, sets([0.5])):
        row = over_seeds(rows, ["metric"], "demo_seed").iloc[-1]
        assert (row["low"], row["high"]) == pytest.approx((0.2, 0.8))


def test_pages_and_tables_have_the_same_interval() -> None:
    values = [0.3, 0.7, 0.45, 0.1]
    page = over_seeds(sets(values, metric="cross_entropy"), ["metric"], "demo_seed").iloc[0]
    assert page[["value", "low", "high"]].to_dict() == pytest.approx(student(np.array(values)), rel=1e-14)


def test_a_mean_claims_no_more_episodes_than_every_set_has() -> None:
    rows = sets(ACCURACIES, n_episodes=[40, 16, 40])
    assert over_seeds(rows, ["metric"], "demo_seed")["n_episodes"].tolist() == [16]


def test_what_a_seed_failed_at_leaves_with_missing_values_in_common() -> None:
    rows = runs(shift=["none", "none", None])
    failed = pd.DataFrame({"contestant": ["s4", "gpt2"], "shift": [pd.NA, "scaled"]})
    assert unfailed(rows, failed, ["contestant", "shift"])["run"].tolist() == ["gpt2-s1", "gpt2-s0"]
    assert unfailed(rows, failed, ["contestant"]).empty and len(unfailed(rows, failed.iloc[:0], ["shift"])) == 3
