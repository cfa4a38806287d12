"""Prompt sets: reproducible episodes and ids. Learning curves: normalisation and areas."""

import hashlib
import json
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from scipy.stats import norm

from iclbench.config import codes
from iclbench.config.resolution import TaskConfig
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Categorical, Gaussian, Point
from iclbench.core.predictor import Oracle, Predictor
from iclbench.evaluation.curves import Curve, learning_curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.registry import ESTIMATORS


class Recorder(Predictor):
    """Predicts 0, and records the number of episodes of each call."""

    def __init__(self) -> None:
        self.block_sizes: list[int] = []

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        self.block_sizes.append(len(points.y))
        return Point(torch.zeros_like(points.y))


def test_prompt_sets_do_not_depend_on_the_global_random_state(task: TaskConfig) -> None:
    first = PromptSet(task, "smoke").episodes
    torch.manual_seed(99)
    second = PromptSet(task, "smoke").episodes
    assert torch.equal(first.context.x, second.context.x)
    assert torch.equal(first.context.y, second.context.y)
    other = PromptSet(task, "smoke", seed=1).episodes
    assert not torch.equal(first.context.x, other.context.x)


def test_a_larger_prompt_set_begins_with_the_smaller_one(task: TaskConfig) -> None:
    small = PromptSet(task.model_copy(update={"episodes": 64}), "smoke").episodes
    large = PromptSet(task.model_copy(update={"episodes": 100}), "smoke").episodes
    assert len(large) == 100
    assert torch.equal(small.context.x, large.context.x[:64])


def test_the_identity_depends_on_all_settings_that_change_the_episodes(task: TaskConfig) -> None:
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


def test_the_name_of_a_prompt_set_contains_a_hash_of_all_settings_that_change_the_episodes(task: TaskConfig) -> None:
    """Packed results are identified by this name."""
    prompts = PromptSet(task, "smoke", "orthants", seed=4)
    hashed = {
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
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert prompts.id == f"tiny-linear-smoke-orthants-{digest}"
    icl_prompts = PromptSet(task, "smoke", "orthants", seed=4, built_family=task.build(), evaluator="icl")
    text = json.dumps(hashed | {"evaluator": "icl"}, sort_keys=True, separators=(",", ":"))
    assert icl_prompts.id == f"tiny-linear-smoke-icl-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def test_the_normalised_error_of_the_zero_predictor_is_one(task: TaskConfig) -> None:
    prompts = PromptSet(task.model_copy(update={"episodes": 4000}), "smoke")
    curve = learning_curve(ESTIMATORS.get("zero")(), prompts)
    errors = curve.scores["squared_error"]
    assert errors.shape == (4000, 9)
    assert np.allclose(errors.mean(0), 1.0, atol=4 * errors.std() / np.sqrt(4000))


def test_scores_do_not_depend_on_the_chunk_size(task: TaskConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = PromptSet(task, "smoke")
    knn = ESTIMATORS.get("knn")()
    expected = learning_curve(knn, prompts).scores["squared_error"]
    monkeypatch.setattr("iclbench.evaluation.curves._QUERIES_PER_PASS", 7 * 9)
    assert np.allclose(expected, learning_curve(knn, prompts).scores["squared_error"], rtol=1e-5)


@pytest.mark.parametrize(("limit", "sizes"), [(8, [1] * 5), (18, [2, 2, 1])])
def test_a_chunk_has_as_many_episodes_as_fit_and_at_least_one(
    limit: int, sizes: list[int], task: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iclbench.evaluation.curves._QUERIES_PER_PASS", limit)
    recorder = Recorder()
    learning_curve(recorder, PromptSet(task.model_copy(update={"episodes": 5}), "smoke"))
    assert recorder.block_sizes == sizes


def test_a_curve_at_selected_sizes_equals_these_columns_of_the_complete_curve(task: TaskConfig) -> None:
    prompts = PromptSet(task, "smoke")
    knn = ESTIMATORS.get("knn")()
    grid = learning_curve(knn, prompts, [0, 2, 5])
    complete = learning_curve(knn, prompts)
    assert np.allclose(grid.scores["squared_error"], complete.scores["squared_error"][:, [0, 2, 5]])


def test_undefined_queries_are_not_scored(task: TaskConfig) -> None:
    curve = learning_curve(ESTIMATORS.get("zero")(), PromptSet(task, "smoke", "orthogonal-query"))
    scored = np.isfinite(curve.scores["squared_error"]).all(0)
    assert scored.tolist() == [True] * 3 + [False] * 6


def test_the_area_under_a_straight_line_is_its_mean_height_on_any_grid() -> None:
    straight = lambda n: 1 - n / 10  # noqa: E731
    full = Curve(tuple(range(11)), {"m": np.array([[straight(n) for n in range(11)]])}, 1.0)
    grid = Curve((0, 1, 3, 10), {"m": np.array([[straight(n) for n in (0, 1, 3, 10)]])}, 1.0)
    assert full.area("m") == pytest.approx([0.5])
    assert grid.area("m") == pytest.approx([0.5])


def test_the_area_over_a_single_size_is_its_score_and_over_no_size_nan() -> None:
    scores = {"m": np.array([[2.0, 5.0], [4.0, 1.0]])}
    one_size = Curve((0, 3), scores, 1.0, np.array([[True, False], [True, True]]))
    assert one_size.area("m").tolist() == [2, 4]
    no_size = Curve((0, 3), scores, 1.0, np.array([[True, False], [False, True]])).area("m")
    assert no_size.shape == (2,) and np.isnan(no_size).all()


class OneOff(Oracle):
    """Uses the true weights to predict a Gaussian with mean true output + 1 and standard deviation 1."""

    heads = ("gaussian",)

    def __init__(self, weights: torch.Tensor | None = None) -> None:
        self.weights = weights

    def informed(self, truth):
        return OneOff(truth["weights"])

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.einsum("bnd,bd->bn", points.x, self.weights).unsqueeze(-1) + 1
        return Gaussian(mean, torch.ones_like(mean))


def test_only_errors_are_divided_by_the_normaliser_and_oracles_get_the_truth(task: TaskConfig) -> None:
    curve = learning_curve(OneOff(), PromptSet(task, "smoke"))
    assert curve.normaliser == 3, "the variance of a linear function of three inputs"
    assert np.allclose(curve.scores["squared_error"], 1 / 3, rtol=1e-4)
    assert np.allclose(curve.scores["log_likelihood"], norm.logpdf(1), rtol=1e-4)


class Third(Predictor):
    """Predicts that the third of three classes is the most likely and the first is the least likely."""

    heads = ("categorical",)

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        return Categorical(torch.tensor([0.0, 1.0, 2.0]).expand(*points.x.shape[:2], 3))


def test_curves_have_the_accuracy_within_the_choices() -> None:
    points = Points.full(torch.zeros(1, 4, 1), torch.tensor([[0, 1, 1, 0]]))
    choices = torch.tensor([[True, True, False]])
    episodes = Episodes(points, points.mask, classes=3, choices=choices)
    prompts = create_autospec(PromptSet, episodes=episodes, family=SimpleNamespace(normaliser=1.0))
    scores = learning_curve(Third(), prompts).scores
    assert scores["accuracy"].tolist() == [[0, 0, 0, 0]]
    assert scores["accuracy_within_choices"].tolist() == [[0, 1, 1, 0]]
