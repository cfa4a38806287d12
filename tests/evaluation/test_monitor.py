"""Evaluation while training: what is scored when, and that training neither notices nor forgets it."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import tomli_w

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted, UnknownNameError, UsageError
from iclbench.evaluation.evaluate import evaluate_run, evaluators_of
from iclbench.evaluation.monitor import Monitor
from iclbench.store.identity import variant_id
from iclbench.store.runs import DivergedError, Run, create
from iclbench.training.run import train
from tests.prototypes import prototype_card
from tests.training.test_run import have_same_weights, stop_at, weights


def new_run(results: Path, *overrides: str) -> Run:
    results.mkdir(exist_ok=True)
    card = results / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card()))
    return create(results, resolve_run(str(card), "tests.prototypes:Net", "smoke", 3, overrides), "net")


def scored(run: Run) -> pd.DataFrame:
    rows = tables.read("values", run.path / "values.parquet")
    return rows[rows["evaluator"].ne("train")]


def test_training_does_not_notice(tmp_path: Path) -> None:
    watched = new_run(tmp_path / "a")
    train(watched, monitor=Monitor)
    alone = new_run(tmp_path / "b", "train.evaluate_every=0")
    train(alone, monitor=Monitor)
    assert weights(watched)["features.1.num_batches_tracked"] == 12
    assert have_same_weights(watched, alone)
    assert len(scored(watched))
    assert not len(scored(alone))


def test_the_last_step_scores_what_eval_scores(tmp_path: Path) -> None:
    """Which takes buffers that are saved and loaded, and eval mode in both."""
    run = new_run(tmp_path)
    train(run, monitor=Monitor)
    assert not run.load().training
    list(evaluate_run(Context(tmp_path), run, baseline_names=["majority"]))
    after = tables.read_all("values", tmp_path / "tables").query("kind == 'backbone' and evaluator != 'targets'")
    after = after[after["metric"] != "score"]  # which follows from all contestants together
    columns = ["prompt_set", "evaluator", "metric"]
    last = scored(run).query("axis_value == 12").set_index(columns).sort_index()
    after = after.set_index(columns).sort_index()
    apart = ["axis", "axis_value", "context_order", "tuned"]  # which training does not write
    pd.testing.assert_frame_equal(last.drop(columns=apart), after.drop(columns=apart))


def test_it_is_scored_every_so_many_steps_and_after_the_last(tmp_path: Path) -> None:
    run, seen = new_run(tmp_path), []
    train(run, monitor=partial(Monitor, watch=seen.append))
    rows = scored(run)
    assert sorted(set(rows["axis_value"])) == [5, 10, 12]
    assert set(rows["evaluator"]) == {"icl", "icl_paired"}
    assert set(rows["metric"]) == {"accuracy", "accuracy_within_choices", "cross_entropy"}
    assert set(rows["variant"]) == {variant_id(run.config)}
    assert [set(each) for each in seen] == [{"icl", "icl_paired"}] * 3
    headline = rows[rows["metric"].eq("accuracy_within_choices") & rows["evaluator"].eq("icl")]
    assert headline["value"].tolist() == [each["icl"] for each in seen]
    assert set(headline["n_episodes"]) == {70}


def test_only_the_first_episodes_are_asked_and_only_the_tests_that_are_named(tmp_path: Path) -> None:
    run = new_run(tmp_path, "task.episodes=300", 'train.evaluators=["icl"]', "train.evaluate_every=12")
    train(run, monitor=Monitor)
    rows = scored(run)
    assert set(rows["n_episodes"]) == {256}
    assert set(rows["evaluator"]) == {"icl"}


@pytest.mark.parametrize("step", [4, 8])
def test_a_stopped_and_continued_run_has_the_same_rows(tmp_path: Path, step: int) -> None:
    straight, broken = new_run(tmp_path / "a"), new_run(tmp_path / "b")
    train(straight, monitor=Monitor)
    with pytest.raises(Interrupted):
        train(broken, report=stop_at(step), monitor=Monitor)
    train(broken, monitor=Monitor)
    assert have_same_weights(straight, broken)
    assert (straight.path / "values.parquet").read_bytes() == (broken.path / "values.parquet").read_bytes()


def test_a_diverged_model_is_said_to_have_diverged(tmp_path: Path) -> None:
    run = new_run(tmp_path, "train.evaluate_every=1", "train.lr=1e30", "train.schedule=constant")
    with pytest.raises(DivergedError, match=r"train\.lr"):
        train(run, monitor=Monitor)


def test_tests_may_be_spelled_with_hyphens_on_a_card(tmp_path: Path) -> None:
    card = tmp_path / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card(evaluators=["icl-paired"])))
    for where, overrides in {"card": [], "named": ['train.evaluators=["ICL-paired"]']}.items():
        run = create(tmp_path, resolve_run(str(card), "tests.prototypes:Net", "smoke", 3, overrides), where)
        train(run, monitor=Monitor)
        assert set(scored(run)["evaluator"]) == {"icl_paired"}
        assert evaluators_of(run, []) == ["icl_paired"]
        asked = [cell.prompts.evaluation for cell in evaluate_run(Context(tmp_path), run, baseline_names=["majority"])]
        assert asked == ["none"] * 2 + ["icl_paired"] * 2


def test_tests_that_the_card_does_not_have_are_refused(tmp_path: Path, card_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'iwl'.*train\.evaluators"):
        new_run(tmp_path, 'train.evaluators=["iwl"]')
    with pytest.raises(UsageError, match=r"evaluate_every.*'tiny-linear' names no evaluators"):
        resolve_run(str(card_path), "gpt2", "smoke", 0, ["train.evaluate_every=2"])
