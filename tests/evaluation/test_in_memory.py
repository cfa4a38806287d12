"""Evaluation without a folder: the rows that files hold."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from iclbench import tables
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.predictions import Categorical, Point
from iclbench.core.predictor import Predictor
from iclbench.evaluation import cells
from iclbench.evaluation.contestants import baselines, in_memory
from iclbench.evaluation.evaluate import evaluate, evaluate_cell, summarise
from iclbench.evaluation.prompts import PromptSet
from iclbench.training.fit import fit
from tests.prototypes import prototype_card


class Half(Predictor):
    """Half, whatever it is shown; takes in sequences of six points at most, and fails by choice."""

    longest = 6
    fails = False

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        if self.fails:
            raise RuntimeError("out of luck")
        mean = torch.full_like(points.y, 0.5)
        return Point(mean if prefixes is None else mean[:, list(prefixes)])


class Undecided(Predictor):
    """Every class alike."""

    heads = frozenset({"categorical"})

    def predict_targets(self, context, x_target, related=None):
        return Categorical(torch.zeros(*x_target.shape[:2], 6))


def files(results: Path, contestants: list, prompts: PromptSet) -> pd.DataFrame:
    paths = [cells.cell_path(results, each, prompts) for each in contestants]
    return pd.concat([tables.read("values", path) for path in paths], ignore_index=True)


@pytest.mark.parametrize("shift", ["none", "noisy"])
def test_learning_curves_in_memory_are_those_in_files(card_path: Path, tmp_path: Path, shift: str) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke", shift)
    broken = Half()
    broken.fails = True
    field = [in_memory("half", Half()), in_memory("broken", broken), *baselines(prompts, ["least-squares", "knn-3"])]
    found = evaluate(field, prompts)
    assert not list(tmp_path.rglob("*.parquet"))
    reasons = [evaluate_cell(tmp_path, each, prompts) for each in field]
    assert reasons == [None, f"{__name__}:Half.predict_next raised RuntimeError: out of luck", None, None]
    pd.testing.assert_frame_equal(found, files(tmp_path, field, prompts))
    assert set(found.query("contestant == 'half'")["status"]) == {"ok", "skipped"}
    assert {"squared_error", "auc"} <= set(found["metric"]) and found["low"].notna().any()


@pytest.mark.parametrize("evaluator", ["", "icl_paired"])
def test_target_scores_in_memory_are_those_in_files(tmp_path: Path, evaluator: str) -> None:
    import tomli_w

    card = tmp_path / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card()))
    prompts = PromptSet(resolve_task(str(card), "smoke")[0], "smoke", evaluator=evaluator)
    field = [in_memory("undecided", Undecided()), *baselines(prompts, ["majority"])]
    found = evaluate(field, prompts)
    assert [evaluate_cell(tmp_path, each, prompts) for each in field] == [None, None]
    summarise(tmp_path, prompts)
    summaries = tables.read_all("values", tmp_path / "tables" / prompts.id / "summary")
    assert set(summaries["run"]) == ({"chance", "majority", "undecided"} if evaluator else set())
    theirs = tables.union("values", [files(tmp_path, field, prompts), summaries])
    keys = tables.keys("values")
    pd.testing.assert_frame_equal(*(f.sort_values(keys, ignore_index=True) for f in (found, theirs)))
    assert set(found["evaluator"]) == {evaluator or "targets"}


def test_nobody_gives_no_rows(card_path: Path) -> None:
    found = evaluate([], PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke"))
    assert found.empty and list(found.columns) == list(tables.SCHEMAS["values"])


def test_a_predictor_in_memory_is_nobody_whose_cell_is_kept(card_path: Path, tmp_path: Path) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    evaluate_cell(tmp_path, in_memory("half", Half()), prompts)
    assert not cells.is_done(tmp_path, in_memory("half", Half()), prompts)


def test_a_model_is_scored_as_it_is_used_and_left_in_the_mode_that_it_was_in() -> None:
    """Its statistics of batches do not move, noise of dropout is off, and training goes on as if nobody had looked."""
    config = resolve_run("linear", "s4", "smoke", overrides=["task.dim=2", "task.episodes=8", "backbone.dropout=0.5"])
    prompts = PromptSet(config.task, "smoke")
    model = config.build(config.task.build()).train()
    first, second = (evaluate([in_memory("mine", model)], prompts) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    assert model.training and all(module.training for module in model.modules())
    pd.testing.assert_frame_equal(first, evaluate([in_memory("mine", model.eval())], prompts))
    assert not model.training


def test_evaluating_while_training_changes_nothing_of_what_is_trained() -> None:
    config = resolve_run("bursty", "cnp", "smoke", overrides=["task.episodes=8", "backbone.encoder=resnet-64"])
    prompts = PromptSet(config.task, "smoke")
    settings = config.train.model_copy(update={"steps": 2, "evaluate_every": 0})

    def trained(look: bool) -> dict[str, torch.Tensor]:
        model = config.build(config.task.build())
        looking = [lambda at: evaluate([in_memory("now", at.backbone)], prompts)]
        fit(model, config.task, settings, looking if look else [])
        return model.state_dict()

    watched, plain = trained(look=True), trained(look=False)
    assert all(torch.equal(watched[name], plain[name]) for name in plain)
