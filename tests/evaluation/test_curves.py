"""Prompt sets are frozen and shared; curves are normalised; areas and scores are what they say."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from scipy.stats import norm

from iclbench.config import codes
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Categorical, Gaussian
from iclbench.core.predictor import Oracle, Predictor
from iclbench.evaluation.curves import Curve, learning_curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.registry import ESTIMATORS


@pytest.fixture
def task(card_path: Path) -> TaskConfig:
    return resolve_task(str(card_path), "smoke")[0]


def test_prompt_sets_are_frozen_and_independent_of_the_callers_random_state(task: TaskConfig) -> None:
    first = PromptSet(task, "smoke").episodes
    torch.manual_seed(99)
    again = PromptSet(task, "smoke").episodes
    assert torch.equal(first.context.x, again.context.x)
    assert torch.equal(first.context.y, again.context.y)
    other = PromptSet(task, "smoke", seed=1).episodes
    assert not torch.equal(first.context.x, other.context.x)


def test_a_larger_prompt_set_begins_with_the_smaller(task: TaskConfig) -> None:
    small = PromptSet(task.model_copy(update={"episodes": 64}), "smoke").episodes
    large = PromptSet(task.model_copy(update={"episodes": 100}), "smoke").episodes
    assert len(large) == 100
    assert torch.equal(small.context.x, large.context.x[:64])


def test_identity_depends_on_everything_that_changes_the_episodes(task: TaskConfig) -> None:
    sets = [
        PromptSet(task, "smoke"),
        PromptSet(task, "smoke", "orthants"),
        PromptSet(task, "smoke", "points-20"),
        PromptSet(task, "smoke", seed=1),
        PromptSet(task.model_copy(update={"episodes": 47}), "smoke"),
        PromptSet(task.model_copy(update={"parameters": {"dim": 4}}), "smoke"),
    ]
    assert len({s.id for s in sets}) == len(sets)
    assert PromptSet(task.model_copy(update={"baselines": []}), "smoke").id == sets[0].id


def test_the_name_of_a_prompt_set_is_a_hash_of_what_its_episodes_depend_on(task: TaskConfig) -> None:
    """Packed results are found by it."""
    prompts = PromptSet(task, "smoke", "orthants", seed=4)
    about = {
        "family": "linear",
        "parameters": task.parameters,
        "data": prompts.family.fingerprint,
        "shift": "orthants",
        "seed": 4,
        "codes": [codes.of_family("linear"), codes.of_prompts("linear")],
        "learned": {},
        "evaluator": "",
        "question": "next",
        "points": 8,
        "episodes": 48,
    }
    text = json.dumps(about, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert prompts.id == f"tiny-linear-smoke-orthants-{digest}"
    asked = PromptSet(task, "smoke", "orthants", seed=4, given=task.build(), evaluator="icl")
    text = json.dumps(about | {"evaluator": "icl"}, sort_keys=True, separators=(",", ":"))
    assert asked.id == f"tiny-linear-smoke-icl-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def test_zero_predictor_scores_one(task: TaskConfig) -> None:
    many = PromptSet(task.model_copy(update={"episodes": 4000}), "smoke")
    curve = learning_curve(ESTIMATORS.get("zero")(), many)
    errors = curve.scores["squared_error"]
    assert errors.shape == (4000, 9)
    assert np.allclose(errors.mean(0), 1.0, atol=4 * errors.std() / np.sqrt(4000))


def test_chunks_do_not_change_the_scores(task: TaskConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = PromptSet(task, "smoke")
    knn = ESTIMATORS.get("knn")()
    whole = learning_curve(knn, prompts).scores["squared_error"]
    monkeypatch.setattr("iclbench.evaluation.curves._POSITIONS", 7 * 9)
    assert np.allclose(whole, learning_curve(knn, prompts).scores["squared_error"], rtol=1e-5)


def test_grid_answers_equal_the_same_columns_of_the_whole_curve(task: TaskConfig) -> None:
    prompts = PromptSet(task, "smoke")
    knn = ESTIMATORS.get("knn")()
    grid = learning_curve(knn, prompts, [0, 2, 5])
    whole = learning_curve(knn, prompts)
    assert np.allclose(grid.scores["squared_error"], whole.scores["squared_error"][:, [0, 2, 5]])


def test_undefined_queries_are_not_scored(task: TaskConfig) -> None:
    curve = learning_curve(ESTIMATORS.get("zero")(), PromptSet(task, "smoke", "orthogonal-query"))
    scored = np.isfinite(curve.scores["squared_error"]).all(0)
    assert scored.tolist() == [True] * 3 + [False] * 6


def test_area_is_the_mean_height_whatever_the_grid() -> None:
    straight = lambda n: 1 - n / 10  # noqa: E731
    full = Curve(tuple(range(11)), {"m": np.array([[straight(n) for n in range(11)]])}, 1.0)
    grid = Curve((0, 1, 3, 10), {"m": np.array([[straight(n) for n in (0, 1, 3, 10)]])}, 1.0)
    assert full.area("m") == pytest.approx([0.5])
    assert grid.area("m") == pytest.approx([0.5])


def test_an_area_over_one_size_is_the_score_there_and_over_none_is_missing() -> None:
    scores = {"m": np.array([[2.0, 5.0], [4.0, 1.0]])}
    once = Curve((0, 3), scores, 1.0, np.array([[True, False], [True, True]]))
    assert once.area("m").tolist() == [2, 4]
    never = Curve((0, 3), scores, 1.0, np.array([[True, False], [False, True]])).area("m")
    assert never.shape == (2,) and np.isnan(never).all()


class OneOff(Oracle):
    """Told the weights; a Gaussian of width one around the truth and one more."""

    heads = ("gaussian",)

    def __init__(self, weights: torch.Tensor | None = None) -> None:
        self.weights = weights

    def informed(self, truth):
        return OneOff(truth["weights"])

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.einsum("bnd,bd->bn", points.x, self.weights).unsqueeze(-1) + 1
        return Gaussian(mean, torch.ones_like(mean))


def test_only_errors_are_divided_by_the_normaliser_and_an_oracle_is_told_the_truth(task: TaskConfig) -> None:
    curve = learning_curve(OneOff(), PromptSet(task, "smoke"))
    assert curve.normaliser == 3, "the variance of a linear function of three inputs"
    assert np.allclose(curve.scores["squared_error"], 1 / 3, rtol=1e-4)
    assert np.allclose(curve.scores["log_likelihood"], norm.logpdf(1), rtol=1e-4)


class Third(Predictor):
    """Takes the third of three classes for the likeliest and the second for likelier than the first."""

    heads = ("categorical",)

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        return Categorical(torch.tensor([0.0, 1.0, 2.0]).expand(*points.x.shape[:2], 3))


def test_accuracy_is_told_among_the_admitted_labels_too() -> None:
    points = Points.full(torch.zeros(1, 4, 1), torch.tensor([[0, 1, 1, 0]]))
    choices = torch.tensor([[True, True, False]])
    episodes = Episodes(points, points.mask, classes=3, choices=choices)
    prompts = create_autospec(PromptSet, episodes=episodes, family=SimpleNamespace(normaliser=1.0))
    scores = learning_curve(Third(), prompts).scores
    assert scores["accuracy"].tolist() == [[0, 0, 0, 0]]
    assert scores["accuracy_within_choices"].tolist() == [[0, 1, 1, 0]]
