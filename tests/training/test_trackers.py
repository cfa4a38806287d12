"""Trackers hold the numbers of our own tables: by their own readers where they are installed (`make test-trackers`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import iclbench as icl
from iclbench import tables
from iclbench.cli.export import logged
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import UnknownNameError
from iclbench.store.identity import variant_id
from iclbench.store.runs import Run, create
from iclbench.training import trackers
from iclbench.training.trackers import tracked

SETTINGS = ("-o", "task.dim=2", "-o", "backbone.width=16", "-o", "backbone.layers=1", "-o", "backbone.heads=2")
TRAIN = ("train", "linear", "gpt2", "-p", "smoke", "-o", "train.steps=6", "-o", "train.log_every=2", *SETTINGS)


class Noted:
    """Notes what it is told, for all runs."""

    package = "iclbench"
    seen: list[tuple[str, int, dict[str, float]]]
    opened: list[int]
    closed = 0

    def __init__(self, run: Run, begun: int) -> None:
        self.run = run
        Noted.opened.append(begun)

    def log(self, step: int, values: dict[str, float]) -> None:
        Noted.seen.append((self.run.name, step, dict(values)))

    def close(self) -> None:
        Noted.closed += 1


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> type[Noted]:
    monkeypatch.setitem(trackers.TRACKERS, "noted", Noted)
    Noted.seen, Noted.opened, Noted.closed = [], [], 0
    return Noted


def curve(results: Path) -> list[tuple[int, float]]:
    values = tables.read_all("values", results)
    rows = values[values["axis"].eq("train_step") & values["metric"].eq("loss")]
    return [(int(step), float(value)) for step, value in zip(rows["axis_value"], rows["value"], strict=True)]


def test_losses_are_those_of_the_table(noted: type[Noted], tmp_path: Path) -> None:
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "noted"]) == 0
    found = [(step, values["loss"]) for _, step, values in noted.seen]
    assert [step for step, _ in found] == [2, 4, 6] and noted.opened == [0] and noted.closed == 1
    scale = curve(tmp_path)[0][1] / found[0][1]  # tables are normalised
    assert curve(tmp_path) == [(step, pytest.approx(scale * loss)) for step, loss in found]


def test_the_python_api_takes_trackers_too(noted: type[Noted], tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=2)
    icl.train(task, "cnp", results=tmp_path, settings={"width": 8}, steps=4, log_every=2, log=["noted"])
    assert [step for _, step, _ in noted.seen] == [2, 4] and noted.closed == 1


def test_an_export_holds_the_curve_and_the_scores(noted: type[Noted], tmp_path: Path) -> None:
    where = ("--results", str(tmp_path))
    assert main([*TRAIN, *where, "--name", "tour"]) == 0
    assert main(["eval", "tour", "--baseline", "zero", *where]) == 0
    assert main(["export", "tour", "--log", "noted", *where]) == 0
    steps = {step: values for _, step, values in noted.seen}
    assert set(steps) == {2, 4, 6} and noted.closed == 1
    assert [steps[step]["loss"] for step in (2, 4, 6)] == [loss for _, loss in curve(tmp_path)]
    values = tables.read_all("values", tmp_path)
    auc = values[values["run"].eq("tour") & values["metric"].eq("auc")]["value"].iloc[0]
    assert steps[6]["next/none/auc"] == auc


def test_scores_of_targets_are_exported_and_none_of_other_tasks_seeds_or_trainings(tmp_path: Path) -> None:
    config = resolve_run("gp-mixture", "cnp", "smoke")
    run = create(tmp_path, config)
    known = {"run": run.name, "task": "gp-mixture", "family": "gp-mixture", "contestant": "cnp", "kind": "backbone"}
    known |= {"preset": "smoke", "shift": "none", "evaluator": "targets", "metric": "log_likelihood", "status": "ok"}
    known |= {"variant": variant_id(config), "prompt_set": "a", "card": "c", "version": "0"}
    rows = [
        known | {"n_related": 0, "value": -0.5},
        known | {"n_related": 2, "value": -0.4},
        known | {"n_related": 0, "value": -0.7, "prompt_set": "b"},
        known | {"n_related": 0, "value": 9.0, "task": "other", "trained_on": "gp-mixture", "prompt_set": "c"},
        known | {"n_related": 0, "value": 9.0, "variant": "another", "prompt_set": "0"},
    ]
    ((step, found),) = logged(run, tables.frame("values", rows))
    score = "targets/none/log_likelihood"
    assert step == config.train.steps and found == {score: -0.5, f"{score}/2-related": -0.4, f"b/{score}": -0.7}


def test_what_is_unknown_or_missing_is_one_line_and_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "tensorbord"]) == 2
    assert "tensorboard" in capsys.readouterr().err
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "mlflow"]) == 2
    assert "pip install 'iclbench[mlflow]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_tracker_is_closed_however_training_ends(noted: type[Noted], tmp_path: Path) -> None:
    run = icl.train(icl.task("linear", "smoke", dim=2), "cnp", results=tmp_path, settings={"width": 8}, steps=2)
    with pytest.raises(ZeroDivisionError), tracked(run, ["noted", "noted"]):
        raise ZeroDivisionError
    assert noted.closed == 2
    with pytest.raises(UnknownNameError), tracked(run, ["noted", "none"]):
        pass
    assert noted.closed == 2, "nothing is opened where one is unknown"


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main([*TRAIN, "--results", str(tmp_path), "--log", "tensorboard", "--name", "tour"]) == 0
    events = EventAccumulator(str(tmp_path / "runs" / "tour" / "tensorboard"))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("loss")] == [2, 4, 6]


def test_mlflow_reads_what_was_written_and_a_second_export_adds_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    where = ("--results", str(tmp_path))
    assert main([*TRAIN, *where, "--name", "tour", "--log", "mlflow"]) == 0
    assert main(["export", "tour", "--log", "mlflow", *where]) == 0
    client = MlflowClient(tracking_uri=trackers.mlflow_store(tmp_path))
    (experiment,) = (each for each in client.search_experiments() if each.name == "linear")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "tour" and run.data.params["train.steps"] == "6"
    assert {metric.step for metric in client.get_metric_history(run.info.run_id, "loss")} == {2, 4, 6}


def test_wandb_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "wandb", "--name", "tour"]) == 0
    assert list((tmp_path / "runs" / "tour" / "wandb").glob("offline-run-*/*.wandb"))
