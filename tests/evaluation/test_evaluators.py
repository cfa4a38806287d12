"""Tests defined by a family: all contestants are evaluated, pairs are scored together, and names select tests."""

from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.context import Context
from iclbench.core.predictions import Categorical
from iclbench.core.predictor import Predictor
from iclbench.evaluation import contestants
from iclbench.evaluation.evaluate import evaluate_run, evaluators_of
from iclbench.evaluation.monitor import Monitor
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import group_scores, target_scores
from iclbench.store.identity import variant_id
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.conftest import small_card
from tests.prototypes import CLASSES, prototype_card
from tests.refusals import refused

HEADLINE = "accuracy_within_choices"


def card_in(folder: Path, **changes: object) -> str:
    path = folder / "tiny-classes.toml"
    path.write_text(tomli_w.dumps(prototype_card(**changes)))
    return str(path)


@pytest.fixture(scope="module")
def evaluated_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("evaluated")
    run = create(folder, resolve_run(card_in(folder), "gpt2", "smoke", 0))
    train(run, monitor=Monitor)
    assert not [cell.reason for cell in evaluate_run(Context(folder), run) if cell.reason]
    return folder, run


@pytest.mark.slow
def test_all_contestants_are_evaluated_on_all_tests_and_on_samples_of_the_task(evaluated_run: tuple[Path, Run]) -> None:
    rows = tables.read_all("values", evaluated_run[0] / "tables")
    rows = rows[rows["metric"].eq(HEADLINE) & rows["axis"].isna()]
    predictor_names = {"gpt2", "pixel-1nn", "nearest-class-mean", "majority"}
    names = {name: set(part["contestant"]) for name, part in rows.groupby("evaluator")}
    assert names == {
        "targets": predictor_names,
        "icl": predictor_names | {"chance"},
        "icl_paired": predictor_names | {"chance"},
    }
    assert rows["shift"].eq("none").all()
    counts = rows[rows["contestant"].ne("chance")].groupby("evaluator")["n_episodes"].unique()
    assert {name: episodes.tolist() for name, episodes in counts.items()} == {
        "icl": [70],
        "icl_paired": [35],
        "targets": [70],
    }
    chance = rows[rows["contestant"].eq("chance")].set_index("evaluator")["value"]
    assert chance.to_dict() == {"icl": 0.5, "icl_paired": 0.25}
    evaluations_with_costs = {
        path.parent.name.split("-")[3]
        for path in tables.files("costs", evaluated_run[0])
        if len(tables.read("costs", path))
    }
    assert "none" in evaluations_with_costs
    assert not {"icl", "icl_paired"} & evaluations_with_costs  # costs are measured on samples of the task, not on tests


@pytest.mark.slow
def test_a_pair_is_correct_only_if_both_episodes_are(evaluated_run: tuple[Path, Run]) -> None:
    folder, run = evaluated_run
    prompts = PromptSet(run.config.task, "smoke", evaluator="icl_paired")
    model, episodes = run.load(), prompts.episodes
    assert torch.equal(episodes.context.x[::2], episodes.context.x[1::2])
    assert (episodes.targets.y[::2] != episodes.targets.y[1::2]).all()
    is_right, cross_entropies = [], []
    with torch.no_grad():
        for k in range(0, 70, 2):
            answers = [
                model.predict_targets(episodes[j : j + 1].context, episodes[j : j + 1].targets.x) for j in (k, k + 1)
            ]
            labels = [int(episodes.targets.y[j]) for j in (k, k + 1)]
            is_right.append(all(int(a.logits[0, 0, :2].argmax()) == y for a, y in zip(answers, labels, strict=True)))
            cross_entropies.append(
                -np.mean([float(a.logits[0, 0].log_softmax(-1)[y]) for a, y in zip(answers, labels, strict=True)])
            )
    rows = tables.read_all("values", folder / "tables").query("evaluator == 'icl_paired' and kind == 'backbone'")
    values = rows.set_index("metric")["value"]
    assert values[HEADLINE] == pytest.approx(np.mean(is_right))
    assert values["cross_entropy"] == pytest.approx(np.mean(cross_entropies), rel=1e-5)
    errors = tables.read_all("errors", folder / "tables").query("run == @run.name and prompt_set == @prompts.id")
    np.testing.assert_array_equal(errors[errors["metric"].eq(HEADLINE)]["value"], np.array(is_right, float))


def test_a_group_has_the_minimum_accuracy_and_the_mean_of_other_scores() -> None:
    scores = {
        "accuracy": np.array([[1.0], [0.0], [1.0], [1.0]]),
        "cross_entropy": np.array([[1.0], [3.0], [0.0], [1.0]]),
    }
    by_group = group_scores(scores, 2)
    assert by_group["accuracy"].tolist() == [[0.0], [1.0]]
    assert by_group["cross_entropy"].tolist() == [[2.0], [0.5]]


class Zero(Predictor):
    """Predicts label 0 for every query, whatever the context."""

    heads = ("categorical",)

    def predict_targets(self, context, x_target, related=None):
        return Categorical(torch.eye(CLASSES)[0].expand(*x_target.shape[:2], -1))


def test_a_predictor_that_ignores_the_context_fails_all_pairs(evaluated_run: tuple[Path, Run]) -> None:
    task = evaluated_run[1].config.task
    single, paired = (target_scores(Zero(), PromptSet(task, "smoke", evaluator=name)) for name in ("icl", "icl_paired"))
    assert 0.3 < single.scores[HEADLINE].mean() < 0.7
    assert not paired.scores[HEADLINE].any()


def test_tests_have_different_prompt_sets_and_larger_sets_begin_with_smaller_ones(
    evaluated_run: tuple[Path, Run],
) -> None:
    task = evaluated_run[1].config.task
    sets = [PromptSet(task, "smoke"), *[PromptSet(task, "smoke", evaluator=name) for name in ("icl", "icl_paired")]]
    assert len({prompts.id for prompts in sets}) == 3
    assert [prompts.id.split("-")[3] for prompts in sets] == ["none", "icl", "icl_paired"]
    for name in ("icl", "icl_paired"):
        smaller = PromptSet(task.model_copy(update={"episodes": 64}), "smoke", evaluator=name).episodes
        larger = PromptSet(task.model_copy(update={"episodes": 131}), "smoke", evaluator=name).episodes
        assert len(larger) == (131 if name == "icl" else 130)
        assert torch.equal(smaller.context.x, larger.context.x[:64])


@pytest.mark.slow
def test_names_of_tests_may_have_hyphens_or_underscores(evaluated_run: tuple[Path, Run], tmp_path: Path) -> None:
    _, run = evaluated_run
    assert evaluators_of(run, []) == ["icl", "icl_paired"]
    assert evaluators_of(run, ["icl-paired"]) == ["icl_paired"]
    with refused("unknown-name", "'icl_pared'", "'icl_paired'"):
        evaluators_of(run, ["icl_pared"])
    options = {"evaluators": ["icl_paired"], "baseline_names": ["majority"]}
    cells = list(evaluate_run(Context(tmp_path), run, **options))
    assert [cell.prompts.evaluation for cell in cells] == ["none"] * 2 + ["icl_paired"] * 2
    assert all(cell.cached for cell in evaluate_run(Context(tmp_path), run, **options))


def test_unknown_tests_on_a_card_are_refused(tmp_path: Path) -> None:
    with refused("unknown-name", "'iclx'", "'icl'", "'tiny-classes'"):
        create(
            tmp_path,
            resolve_run(card_in(tmp_path, evaluators=["iclx"]), "gpt2", "smoke", 0, ["train.evaluate_every=0"]),
        )
    path = tmp_path / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card(evaluators=["icl"])))
    with refused("unknown-name", "'icl'"):
        resolve_task(str(path), "smoke")[0].build()


def test_baselines_for_a_different_type_of_target_are_refused(evaluated_run: tuple[Path, Run], card_path: Path) -> None:
    label_task, number_task = evaluated_run[1].config.task, resolve_task(str(card_path), "smoke")[0]
    with refused("not-applicable", "'knn-3'", "'tiny-classes'", "class labels"):
        contestants.baselines(PromptSet(label_task, "smoke"), ["knn-3"])
    with refused("not-applicable", "'majority'", "'tiny-linear'", "numbers"):
        contestants.baselines(PromptSet(number_task, "smoke"), ["majority"])


def test_runs_have_the_same_variant_if_they_differ_only_in_seed_or_evaluation_settings(
    evaluated_run: tuple[Path, Run],
) -> None:
    folder, run = evaluated_run
    card = card_in(folder)
    configs = [resolve_run(card, "gpt2", "smoke", 5), resolve_run(card, "gpt2", "smoke", 0, ["train.evaluate_every=3"])]
    changed_configs = [
        resolve_run(card, "gpt2", "smoke", 0, [override])
        for override in ("train.lr=0.5", "backbone.width=32", "task.points=5")
    ]
    assert {variant_id(config) for config in configs} == {variant_id(run.config)}
    assert len({variant_id(run.config), *[variant_id(config) for config in changed_configs]}) == 4
    rows = tables.read_all("values", folder)
    assert set(rows.loc[rows["kind"].eq("backbone"), "variant"]) == {variant_id(run.config)}
    assert rows.loc[rows["kind"].ne("backbone"), "variant"].isna().all()
