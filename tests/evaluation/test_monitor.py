"""Evaluation during training: its steps, its scores, and equal weights with and without it."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import tomli_w

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError, Interrupted
from iclbench.evaluation.evaluate import evaluate_run, evaluators_of
from iclbench.evaluation.monitor import Monitor
from iclbench.store.identity import variant_id
from iclbench.store.runs import DivergedError, Run, create
from iclbench.training.run import train
from tests.prototypes import prototype_card
from tests.refusals import refused
from tests.training.test_run import have_same_weights, stop_at, weights


def new_run(results: Path, *overrides: str) -> Run:
    results.mkdir(exist_ok=True)
    card = results / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card()))
    return create(results, resolve_run(str(card), "tests.prototypes:Net", "smoke", 3, overrides), "net")


def evaluation_rows(run: Run) -> pd.DataFrame:
    """Return the rows of the evaluations during training, without the rows of training steps (evaluator `train`)."""
    rows = tables.read("values", run.path / "values.parquet")
    return rows[rows["evaluator"].ne("train")]


def test_evaluations_do_not_change_the_weights(tmp_path: Path) -> None:
    monitored = new_run(tmp_path / "a")
    train(monitored, monitor=Monitor)
    unmonitored = new_run(tmp_path / "b", "train.evaluate_every=0")
    train(unmonitored, monitor=Monitor)
    assert weights(monitored)["features.1.num_batches_tracked"] == 12
    assert have_same_weights(monitored, unmonitored)
    assert len(evaluation_rows(monitored))
    assert not len(evaluation_rows(unmonitored))


@pytest.mark.slow
def test_scores_after_the_last_step_equal_the_scores_of_the_eval_command(tmp_path: Path) -> None:
    """Buffers must be saved and loaded, and both evaluations must use eval mode."""
    run = new_run(tmp_path)
    train(run, monitor=Monitor)
    assert not run.load().training
    list(evaluate_run(Context(tmp_path), run, baseline_names=["majority"]))
    after = tables.read_all("values", tmp_path / "tables").query("kind == 'backbone' and evaluator != 'targets'")
    after = after[after["metric"] != "score"]  # scores depend on all contestants
    columns = ["prompt_set", "evaluator", "metric"]
    last = evaluation_rows(run).query("axis_value == 12").set_index(columns).sort_index()
    after = after.set_index(columns).sort_index()
    eval_columns = ["axis", "axis_value", "context_order", "tuned"]  # only the eval command writes these columns
    pd.testing.assert_frame_equal(last.drop(columns=eval_columns), after.drop(columns=eval_columns))


def test_models_are_evaluated_at_intervals_and_after_the_last_step(tmp_path: Path) -> None:
    run, accuracies = new_run(tmp_path), []
    train(run, monitor=partial(Monitor, watch=accuracies.append))
    rows = evaluation_rows(run)
    assert sorted(set(rows["axis_value"])) == [5, 10, 12]
    assert set(rows["evaluator"]) == {"icl", "icl_paired"}
    assert set(rows["metric"]) == {"accuracy", "accuracy_within_choices", "cross_entropy"}
    assert set(rows["variant"]) == {variant_id(run.config)}
    assert [set(by_test) for by_test in accuracies] == [{"icl", "icl_paired"}] * 3
    headline = rows[rows["metric"].eq("accuracy_within_choices") & rows["evaluator"].eq("icl")]
    assert headline["value"].tolist() == [by_test["icl"] for by_test in accuracies]
    assert set(headline["n_episodes"]) == {70}


def test_only_the_first_episodes_and_selected_tests_are_evaluated(tmp_path: Path) -> None:
    run = new_run(tmp_path, "task.episodes=300", 'train.evaluators=["icl"]', "train.evaluate_every=12")
    train(run, monitor=Monitor)
    rows = evaluation_rows(run)
    assert set(rows["n_episodes"]) == {256}
    assert set(rows["evaluator"]) == {"icl"}


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 8])
def test_a_resumed_run_has_the_same_rows_as_an_uninterrupted_one(tmp_path: Path, step: int) -> None:
    complete, resumed = new_run(tmp_path / "a"), new_run(tmp_path / "b")
    train(complete, monitor=Monitor)
    with pytest.raises(Interrupted):
        train(resumed, report=stop_at(step), monitor=Monitor)
    train(resumed, monitor=Monitor)
    assert have_same_weights(complete, resumed)
    assert (complete.path / "values.parquet").read_bytes() == (resumed.path / "values.parquet").read_bytes()


def test_a_model_with_infinite_scores_has_diverged(tmp_path: Path) -> None:
    run = new_run(tmp_path, "train.evaluate_every=1", "train.lr=1e30", "train.schedule=constant")
    with pytest.raises(DivergedError) as error:
        train(run, monitor=Monitor)
    assert error.value.code == "diverged" and "train.lr" in str(error.value)


@pytest.mark.slow
def test_names_of_tests_may_have_hyphens(tmp_path: Path) -> None:
    card = tmp_path / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card(evaluators=["icl-paired"])))
    for name, overrides in {"card": [], "named": ['train.evaluators=["ICL-paired"]']}.items():
        run = create(tmp_path, resolve_run(str(card), "tests.prototypes:Net", "smoke", 3, overrides), name)
        train(run, monitor=Monitor)
        assert set(evaluation_rows(run)["evaluator"]) == {"icl_paired"}
        assert evaluators_of(run, []) == ["icl_paired"]
        results = evaluate_run(Context(tmp_path), run, baseline_names=["majority"])
        assert [cell.prompts.evaluation for cell in results] == ["none"] * 2 + ["icl_paired"] * 2


def test_tests_that_are_not_on_the_card_are_refused(tmp_path: Path, card_path: Path) -> None:
    with refused("unknown-name", "iwl", "train.evaluators"):
        new_run(tmp_path, 'train.evaluators=["iwl"]')
    with pytest.raises(IclbenchError) as error:
        resolve_run(str(card_path), "gpt2", "smoke", 0, ["train.evaluate_every=2"])
    assert error.value.exit_code == 2 and "evaluate_every" in str(error.value) and "tiny-linear" in str(error.value)
