"""Means over seeds, compared with NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.tables.means import means_over_seeds, student_interval, without_failed

ACCURACIES = [0.91, 0.99, 0.98]


def runs(**columns: list[object]) -> pd.DataFrame:
    """Return rows for two runs of one contestant and one run of another."""
    rows = {"contestant": ["gpt2", "gpt2", "s4"], "run": ["gpt2-s1", "gpt2-s0", "s4-s0"], "value": [3.0, 1.0, 5.0]}
    intervals = {"low": [2.0, 0.5, 4.0], "high": [4.0, 1.5, 6.0], "n_episodes": [64, 32, 64]}
    return pd.DataFrame(rows | intervals | columns)


def scores_by_set(values: list[float], **columns: object) -> pd.DataFrame:
    """Return the scores of a language model for several sets of demonstrations."""
    rows = {"metric": "accuracy", "demo_seed": range(len(values)), "value": values}
    intervals = {"low": np.subtract(values, 0.3), "high": np.add(values, 0.3), "n_episodes": 40, "run": "lm"}
    return pd.DataFrame(rows | intervals | columns)


def test_the_interval_of_a_mean_over_runs_is_the_envelope_of_their_intervals() -> None:
    gpt2, s4 = means_over_seeds(runs(), ["contestant"]).to_dict("records")
    assert (gpt2["value"], gpt2["low"], gpt2["high"], gpt2["n_episodes"]) == (2.0, 0.5, 4.0, 32)
    assert (gpt2["lowest"], gpt2["highest"], gpt2["sd"]) == (1.0, 3.0, pytest.approx(np.std([1.0, 3.0], ddof=1)))
    assert (gpt2["runs"], gpt2["run"]) == (2, "gpt2-s0; gpt2-s1")
    assert (s4["value"], s4["low"], s4["high"], s4["runs"], s4["run"]) == (5.0, 4.0, 6.0, 1, "s4-s0")


def test_the_mean_over_a_single_run_equals_its_row() -> None:
    rows = runs()
    means = means_over_seeds(rows, ["contestant", "run"])
    assert means["value"].tolist() == [1.0, 3.0, 5.0] and means["runs"].eq(1).all()
    single_mean = means_over_seeds(rows.iloc[2:], ["contestant"])
    pd.testing.assert_frame_equal(single_mean, means_over_seeds(rows, ["contestant"]).iloc[1:].reset_index(drop=True))


def test_missing_values_form_a_group_and_means_of_costs_have_no_interval() -> None:
    costs = runs(n_points=[8, 8, None]).drop(columns=["low", "high"])
    means = means_over_seeds(costs, ["contestant", "n_points", "n_episodes"])
    assert len(means) == 3 and "low" not in means
    assert means_over_seeds(costs.drop(columns="n_episodes"), ["n_points"])["value"].tolist() == [2.0, 5.0]


def test_means_over_demonstration_sets_have_t_intervals_clipped_at_1_for_proportions() -> None:
    (row,) = means_over_seeds(scores_by_set(ACCURACIES), ["metric"], "demo_seed").to_dict("records")
    expected = stats.ttest_1samp(ACCURACIES, 0).confidence_interval(0.95)
    assert expected.high > 1
    assert (row["value"], row["low"], row["high"]) == pytest.approx((np.mean(ACCURACIES), expected.low, 1.0))
    assert row["demo_seeds"] == 3
    (loss,) = means_over_seeds(scores_by_set(ACCURACIES, metric="cross_entropy"), ["metric"], "demo_seed").to_dict(
        "records"
    )
    assert (loss["low"], loss["high"]) == pytest.approx(tuple(expected))


def test_a_single_demonstration_set_keeps_its_interval_over_queries() -> None:
    two_metrics = pd.concat(
        [scores_by_set(ACCURACIES), scores_by_set([0.5]).assign(metric="accuracy_first_token")],
        ignore_index=True,
    )
    for rows in (two_metrics, scores_by_set([0.5])):
        row = means_over_seeds(rows, ["metric"], "demo_seed").iloc[-1]
        assert (row["low"], row["high"]) == pytest.approx((0.2, 0.8))


def test_tables_and_figures_compute_the_same_interval() -> None:
    values = [0.3, 0.7, 0.45, 0.1]
    mean = means_over_seeds(scores_by_set(values, metric="cross_entropy"), ["metric"], "demo_seed").iloc[0]
    assert mean[["value", "low", "high"]].to_dict() == pytest.approx(student_interval(np.array(values)), rel=1e-14)


def test_a_mean_reports_the_smallest_number_of_episodes() -> None:
    rows = scores_by_set(ACCURACIES, n_episodes=[40, 16, 40])
    assert means_over_seeds(rows, ["metric"], "demo_seed")["n_episodes"].tolist() == [16]


def test_rows_that_share_the_keys_of_a_failed_row_are_removed() -> None:
    rows = runs(shift=["none", "none", None])
    failed = pd.DataFrame({"contestant": ["s4", "gpt2"], "shift": [pd.NA, "scaled"]})
    assert without_failed(rows, failed, ["contestant", "shift"])["run"].tolist() == ["gpt2-s1", "gpt2-s0"]
    assert (
        without_failed(rows, failed, ["contestant"]).empty
        and len(without_failed(rows, failed.iloc[:0], ["shift"])) == 3
    )
