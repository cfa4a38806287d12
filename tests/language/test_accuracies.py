"""Intervals and means over classes against closed forms and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, recall_score

from iclbench.evaluation.bootstrap import summaries
from iclbench.language.accuracies import balanced, summarised, wilson


@pytest.mark.parametrize(("right", "asked"), [(0, 5), (5, 5), (7, 30), (399, 400)])
def test_the_interval_of_a_share_is_wilsons(right: int, asked: int) -> None:
    z, p = stats.norm.ppf(0.975), right / asked
    middle = (p + z**2 / (2 * asked)) / (1 + z**2 / asked)
    reach = z / (1 + z**2 / asked) * np.sqrt(p * (1 - p) / asked + z**2 / (4 * asked**2))
    found = wilson(right, asked)
    assert found["value"] == p and found["n_episodes"] == asked
    assert found["low"] == pytest.approx(middle - reach, abs=1e-12)
    assert found["high"] == pytest.approx(middle + reach, abs=1e-12)


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    targets = list(rng.choice(["a", "b", "c"], 60, p=[0.7, 0.2, 0.1]))
    predicted = [t if rng.random() < 0.6 else "a" for t in targets]
    correct = np.array([float(p == t) for p, t in zip(predicted, targets, strict=True)])
    found = balanced(correct, targets, 0)
    assert found["value"] == pytest.approx(balanced_accuracy_score(targets, predicted))
    assert found["value"] == pytest.approx(recall_score(targets, predicted, average="macro"))
    assert found["low"] < found["value"] < found["high"] and found["n_episodes"] == 60


def test_episodes_that_were_not_asked_do_not_count() -> None:
    correct, targets = np.array([1.0, np.nan, 0.0, np.nan]), ["a", "a", "b", "c"]
    assert balanced(correct, targets, 0)["value"] == 0.5
    assert summarised("accuracy", correct, 0)["n_episodes"] == 2
    found = summarised("log_likelihood", np.array([-1.0, np.nan, -3.0]), 0)
    assert found["value"] == -2.0 and found["n_episodes"] == 2


def test_the_balanced_accuracy_of_a_single_question_has_no_interval() -> None:
    found = balanced(np.array([1.0]), ["a"], 0)
    assert (found["value"], found["n_episodes"]) == (1.0, 1)
    assert np.isnan([found["low"], found["high"]]).all()


def test_questions_that_come_again_make_nothing_surer() -> None:
    """Each asked in fifteen episodes, always with the same answer: as if each had been asked once."""
    right = (np.random.default_rng(0).random(26) < 0.25).astype(float)
    queries = np.tile(np.arange(26), 15)
    found, once = summarised("accuracy", np.tile(right, 15), 0, queries), summaries(right[:, None], 0)[0]
    assert found["n_episodes"] == 390
    assert [found[key] for key in ("value", "low", "high")] == pytest.approx(
        [once[key] for key in ("value", "low", "high")]
    )
    plain = summarised("accuracy", np.tile(right, 15), 0)
    assert found["high"] - found["low"] > 2.5 * (plain["high"] - plain["low"])
    targets = [f"class {n % 3}" for n in queries]
    wide, narrow = (balanced(np.tile(right, 15), targets, 0, asked) for asked in (queries, None))
    assert wide["value"] == narrow["value"]
    assert wide["high"] - wide["low"] > 2 * (narrow["high"] - narrow["low"])
    assert np.isnan(summarised("accuracy", np.ones(3), 0, np.zeros(3, int))["low"]), "one question"
