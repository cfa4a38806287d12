"""Evaluation in memory gives the same rows as evaluation with files."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from iclbench import tables
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.expected_metrics import missing_metrics
from iclbench.core.predictions import Categorical, Point
from iclbench.core.predictor import Predictor
from iclbench.evaluation import cells
from iclbench.evaluation.contestants import baselines, contestant_of_predictor
from iclbench.evaluation.evaluate import evaluate, evaluate_cell, summarise
from iclbench.evaluation.prompts import PromptSet
from iclbench.registry import ESTIMATORS
from iclbench.training.fit import fit
from tests.prototypes import prototype_card


class Half(Predictor):
    """Predicts 0.5, allows sequences of at most six points, and raises an error if `fails` is set."""

    longest = 6
    fails = False

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        if self.fails:
            raise RuntimeError("out of luck")
        mean = torch.full_like(points.y, 0.5)
        return Point(mean if prefixes is None else mean[:, list(prefixes)])


class Undecided(Predictor):
    """Predicts that all classes are equally likely."""

    heads = frozenset({"categorical"})

    def predict_targets(self, context, x_target, related=None):
        return Categorical(torch.zeros(*x_target.shape[:2], 6))


def rows_in_files(results: Path, contestants: list, prompts: PromptSet) -> pd.DataFrame:
    paths = [cells.cell_path(results, contestant, prompts) for contestant in contestants]
    return pd.concat([tables.read("values", path) for path in paths], ignore_index=True)


@pytest.mark.parametrize("shift", ["none", "noisy"])
def test_learning_curves_in_memory_equal_learning_curves_in_files(card_path: Path, tmp_path: Path, shift: str) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke", shift)
    broken = Half()
    broken.fails = True
    models = [contestant_of_predictor("half", Half()), contestant_of_predictor("broken", broken)]
    contestants = [*models, *baselines(prompts, ["least-squares", "knn-3"])]
    values = evaluate(contestants, prompts)
    assert not list(tmp_path.rglob("*.parquet"))
    reasons = [evaluate_cell(tmp_path, contestant, prompts) for contestant in contestants]
    assert reasons[:1] + reasons[2:] == [None] * 3
    assert reasons[1] is not None and f"{__name__}:Half.predict_next" in reasons[1] and "out of luck" in reasons[1]
    pd.testing.assert_frame_equal(values, rows_in_files(tmp_path, contestants, prompts))
    assert set(values.query("contestant == 'half'")["status"]) == {"ok", "skipped"}
    assert {"squared_error", "auc"} <= set(values["metric"]) and values["low"].notna().any()


@pytest.mark.slow
@pytest.mark.parametrize("evaluator", ["", "icl_paired"])
def test_target_scores_in_memory_equal_target_scores_in_files(tmp_path: Path, evaluator: str) -> None:
    import tomli_w

    card = tmp_path / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card()))
    prompts = PromptSet(resolve_task(str(card), "smoke")[0], "smoke", evaluator=evaluator)
    contestants = [contestant_of_predictor("undecided", Undecided()), *baselines(prompts, ["majority"])]
    values = evaluate(contestants, prompts)
    assert [evaluate_cell(tmp_path, contestant, prompts) for contestant in contestants] == [None, None]
    summarise(tmp_path, prompts)
    summaries = tables.read_all("values", tmp_path / "tables" / prompts.id / "summary")
    assert set(summaries["run"]) == ({"chance", "majority", "undecided"} if evaluator else set())
    written = tables.union("values", [rows_in_files(tmp_path, contestants, prompts), summaries])
    keys = tables.key_columns("values")
    pd.testing.assert_frame_equal(*(frame.sort_values(keys, ignore_index=True) for frame in (values, written)))
    assert set(values["evaluator"]) == {evaluator or "targets"}


def test_a_branch_has_the_same_values_as_its_model_evaluated_alone(card_path: Path) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    last, first, broken = Half(), ESTIMATORS.get("zero")(), Half()
    broken.fails = True
    model = contestant_of_predictor("mine", last)
    values = evaluate([replace(model, branches={3: lambda: first, 7: lambda: broken})], prompts)
    assert set(values["axis"].dropna()) == {"branch"} and set(values["axis_value"].dropna()) == {3, 7}
    columns = ["metric", "n_context", "value", "low", "high", "n_episodes", "status"]

    def rows(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.loc[frame["metric"].ne("score"), columns].sort_values(columns[:2], ignore_index=True)

    for step_rows, predictor in ((values[values["axis"].isna()], last), (values[values["axis_value"].eq(3)], first)):
        pd.testing.assert_frame_equal(
            rows(step_rows), rows(evaluate([contestant_of_predictor("mine", predictor)], prompts))
        )
    assert set(values.loc[values["axis_value"].eq(7), "status"]) == {"failed"}


def test_a_cell_with_a_failed_branch_has_failed(card_path: Path, tmp_path: Path) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    broken = Half()
    broken.fails = True
    model = replace(contestant_of_predictor("mine", Half()), branches={3: lambda: broken, 7: Half})
    reason = evaluate_cell(tmp_path, model, prompts)
    assert reason is not None and "out of luck" in reason
    assert not cells.is_done(tmp_path, model, prompts)


def test_without_contestants_there_are_no_rows(card_path: Path) -> None:
    values = evaluate([], PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke"))
    assert values.empty and list(values.columns) == list(tables.SCHEMAS["values"])


def test_a_predictor_in_memory_has_no_cached_cell(card_path: Path, tmp_path: Path) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    evaluate_cell(tmp_path, contestant_of_predictor("half", Half()), prompts)
    assert not cells.is_done(tmp_path, contestant_of_predictor("half", Half()), prompts)


def test_a_cell_with_a_damaged_file_is_not_done(card_path: Path, tmp_path: Path) -> None:
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    (zero,) = baselines(prompts, ["zero"])
    evaluate_cell(tmp_path, zero, prompts)
    for table in ("errors", "values"):
        path = cells.cell_path(tmp_path, zero, prompts, table)
        content = path.read_bytes()
        path.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
        assert not cells.is_done(tmp_path, zero, prompts)
        path.write_bytes(content)
        assert cells.is_done(tmp_path, zero, prompts)


def test_a_cell_is_done_even_if_a_metric_is_undefined(card_path: Path, tmp_path: Path) -> None:
    """Metrics can be undefined for some data, such as events in observation windows."""
    prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    (zero,) = baselines(prompts, ["zero"])
    rows = [cells.shared_columns(zero, prompts, "next") | {"metric": "log_likelihood", "value": -1.0}]
    assert "squared_error" in missing_metrics(["log_likelihood"], prompts.task.question)
    cells.write(tmp_path, zero, prompts, {"values": rows}, None)
    assert cells.is_done(tmp_path, zero, prompts)


def test_a_model_is_evaluated_in_eval_mode_and_its_mode_is_restored() -> None:
    """Batch statistics must not change, and dropout must be off."""
    config = resolve_run("linear", "s4", "smoke", overrides=["task.dim=2", "task.episodes=8", "backbone.dropout=0.5"])
    prompts = PromptSet(config.task, "smoke")
    model = config.build(config.task.build()).train()
    first, second = (evaluate([contestant_of_predictor("mine", model)], prompts) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    assert model.training and all(module.training for module in model.modules())
    pd.testing.assert_frame_equal(first, evaluate([contestant_of_predictor("mine", model.eval())], prompts))
    assert not model.training


def test_evaluations_during_training_do_not_change_the_weights() -> None:
    config = resolve_run("bursty", "cnp", "smoke", overrides=["task.episodes=8", "backbone.encoder=resnet-64"])
    prompts = PromptSet(config.task, "smoke")
    settings = config.train.model_copy(update={"steps": 2, "evaluate_every": 0})

    def train_weights(is_evaluated: bool) -> dict[str, torch.Tensor]:
        model = config.build(config.task.build())
        callbacks = [lambda training: evaluate([contestant_of_predictor("model", training.backbone)], prompts)]
        fit(model, config.task, settings, callbacks if is_evaluated else [])
        return model.state_dict()

    evaluated, plain = train_weights(is_evaluated=True), train_weights(is_evaluated=False)
    assert all(torch.equal(evaluated[name], plain[name]) for name in plain)
