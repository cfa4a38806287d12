"""Accuracies and their intervals against closed forms and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, recall_score

from iclbench.evaluation.bootstrap import summaries
from iclbench.language.accuracies import balanced_accuracy, summary_columns, wilson


@pytest.mark.parametrize(("correct_count", "count"), [(0, 5), (5, 5), (7, 30), (399, 400)])
def test_the_interval_of_an_accuracy_is_the_wilson_interval(correct_count: int, count: int) -> None:
    z, p = stats.norm.ppf(0.975), correct_count / count
    middle = (p + z**2 / (2 * count)) / (1 + z**2 / count)
    half_width = z / (1 + z**2 / count) * np.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    summary = wilson(correct_count, count)
    assert summary["value"] == p and summary["n_episodes"] == count
    assert summary["low"] == pytest.approx(middle - half_width, abs=1e-12)
    assert summary["high"] == pytest.approx(middle + half_width, abs=1e-12)


def test_balanced_accuracy_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    targets = list(rng.choice(["a", "b", "c"], 60, p=[0.7, 0.2, 0.1]))
    predicted = [t if rng.random() < 0.6 else "a" for t in targets]
    correct = np.array([float(p == t) for p, t in zip(predicted, targets, strict=True)])
    summary = balanced_accuracy(correct, targets, 0)
    assert summary["value"] == pytest.approx(balanced_accuracy_score(targets, predicted))
    assert summary["value"] == pytest.approx(recall_score(targets, predicted, average="macro"))
    assert summary["low"] < summary["value"] < summary["high"] and summary["n_episodes"] == 60


def test_skipped_episodes_are_ignored() -> None:
    correct, targets = np.array([1.0, np.nan, 0.0, np.nan]), ["a", "a", "b", "c"]
    assert balanced_accuracy(correct, targets, 0)["value"] == 0.5
    assert summary_columns("accuracy", correct, 0)["n_episodes"] == 2
    summary = summary_columns("log_likelihood", np.array([-1.0, np.nan, -3.0]), 0)
    assert summary["value"] == -2.0 and summary["n_episodes"] == 2


def test_the_balanced_accuracy_of_a_single_query_has_no_interval() -> None:
    summary = balanced_accuracy(np.array([1.0]), ["a"], 0)
    assert (summary["value"], summary["n_episodes"]) == (1.0, 1)
    assert np.isnan([summary["low"], summary["high"]]).all()


def test_repeated_queries_do_not_narrow_the_interval() -> None:
    """Each query is in fifteen episodes with the same answer. The interval is as wide as with one episode per query."""
    correct = (np.random.default_rng(0).random(26) < 0.25).astype(float)
    queries = np.tile(np.arange(26), 15)
    repeated, single = (
        summary_columns("accuracy", np.tile(correct, 15), 0, queries),
        summaries(correct[:, None], 0)[0],
    )
    assert repeated["n_episodes"] == 390
    assert [repeated[key] for key in ("value", "low", "high")] == pytest.approx(
        [single[key] for key in ("value", "low", "high")]
    )
    plain = summary_columns("accuracy", np.tile(correct, 15), 0)
    assert repeated["high"] - repeated["low"] > 2.5 * (plain["high"] - plain["low"])
    targets = [f"class {n % 3}" for n in queries]
    wide, narrow = (balanced_accuracy(np.tile(correct, 15), targets, 0, query_index) for query_index in (queries, None))
    assert wide["value"] == narrow["value"]
    assert wide["high"] - wide["low"] > 2 * (narrow["high"] - narrow["low"])
    assert np.isnan(summary_columns("accuracy", np.ones(3), 0, np.zeros(3, int))["low"]), "one question"
