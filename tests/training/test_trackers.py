"""Trackers log the values of the tables. `make test-trackers` reads them with the libraries of the trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

import iclbench as icl
from iclbench import tables
from iclbench.cli.export import values_by_step
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.store.identity import variant_id
from iclbench.store.runs import Run, create
from iclbench.training import trackers
from iclbench.training.trackers import open_trackers
from tests.refusals import refused

SETTINGS = ("-o", "task.dim=2", "-o", "backbone.width=16", "-o", "backbone.layers=1", "-o", "backbone.heads=2")
TRAIN = ("train", "linear", "gpt2", "-p", "smoke", "-o", "train.steps=6", "-o", "train.log_every=2", *SETTINGS)


class ListTracker:
    """Stores the logged values of all runs in a list."""

    package = "iclbench"
    logged: list[tuple[str, int, dict[str, float]]]
    first_steps: list[int]
    closed_count = 0

    def __init__(self, run: Run, finished_steps: int) -> None:
        self.run = run
        ListTracker.first_steps.append(finished_steps)

    def log(self, step: int, values: dict[str, float]) -> None:
        ListTracker.logged.append((self.run.name, step, dict(values)))

    def close(self) -> None:
        ListTracker.closed_count += 1


@pytest.fixture
def list_tracker(monkeypatch: pytest.MonkeyPatch) -> type[ListTracker]:
    monkeypatch.setitem(trackers.TRACKERS, "list", ListTracker)
    ListTracker.logged, ListTracker.first_steps, ListTracker.closed_count = [], [], 0
    return ListTracker


def curve(results: Path) -> list[tuple[int, float]]:
    values = tables.read_all("values", results)
    rows = values[values["axis"].eq("train_step") & values["metric"].eq("loss")]
    return [(int(step), float(value)) for step, value in zip(rows["axis_value"], rows["value"], strict=True)]


def test_logged_losses_equal_the_losses_in_the_table(list_tracker: type[ListTracker], tmp_path: Path) -> None:
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "list"]) == 0
    losses = [(step, values["loss"]) for _, step, values in list_tracker.logged]
    assert [step for step, _ in losses] == [2, 4, 6]
    assert list_tracker.first_steps == [0] and list_tracker.closed_count == 1
    scale = curve(tmp_path)[0][1] / losses[0][1]  # losses in tables are normalised
    assert curve(tmp_path) == [(step, pytest.approx(scale * loss)) for step, loss in losses]


def test_the_python_api_supports_trackers(list_tracker: type[ListTracker], tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=2)
    icl.train(task, "cnp", results=tmp_path, settings={"width": 8}, steps=4, log_every=2, log=["list"])
    assert [step for _, step, _ in list_tracker.logged] == [2, 4] and list_tracker.closed_count == 1


def test_an_export_contains_the_learning_curve_and_the_scores(list_tracker: type[ListTracker], tmp_path: Path) -> None:
    results = ("--results", str(tmp_path))
    assert main([*TRAIN, *results, "--name", "tour"]) == 0
    assert main(["eval", "tour", "--baseline", "zero", *results]) == 0
    assert main(["export", "tour", "--log", "list", *results]) == 0
    steps = {step: values for _, step, values in list_tracker.logged}
    assert set(steps) == {2, 4, 6} and list_tracker.closed_count == 1
    assert [steps[step]["loss"] for step in (2, 4, 6)] == [loss for _, loss in curve(tmp_path)]
    values = tables.read_all("values", tmp_path)
    auc = values[values["run"].eq("tour") & values["metric"].eq("auc")]["value"].iloc[0]
    assert steps[6]["next/none/auc"] == auc


def test_an_export_contains_target_scores_but_no_scores_of_other_tasks_or_runs(tmp_path: Path) -> None:
    config = resolve_run("gp-mixture", "cnp", "smoke")
    run = create(tmp_path, config)
    shared = {"run": run.name, "task": "gp-mixture", "family": "gp-mixture", "contestant": "cnp", "kind": "backbone"}
    shared |= {"preset": "smoke", "shift": "none", "evaluator": "targets", "metric": "log_likelihood", "status": "ok"}
    shared |= {"variant": variant_id(config), "prompt_set": "a", "card": "c", "version": "0"}
    rows = [
        shared | {"n_related": 0, "value": -0.5},
        shared | {"n_related": 2, "value": -0.4},
        shared | {"n_related": 0, "value": -0.7, "prompt_set": "b"},
        shared | {"n_related": 0, "value": 9.0, "task": "other", "trained_on": "gp-mixture", "prompt_set": "c"},
        shared | {"n_related": 0, "value": 9.0, "variant": "another", "prompt_set": "0"},
    ]
    ((step, scores),) = values_by_step(run, tables.frame("values", rows))
    score = "targets/none/log_likelihood"
    assert step == config.train.steps and scores == {score: -0.5, f"{score}/2-related": -0.4, f"b/{score}": -0.7}


def test_unknown_and_missing_trackers_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "tensorbord"]) == 2
    assert "tensorboard" in capsys.readouterr().err
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "mlflow"]) == 2
    assert "pip install 'iclbench[mlflow]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_trackers_are_closed_after_an_error(list_tracker: type[ListTracker], tmp_path: Path) -> None:
    run = icl.train(icl.task("linear", "smoke", dim=2), "cnp", results=tmp_path, settings={"width": 8}, steps=2)
    with pytest.raises(ZeroDivisionError), open_trackers(run, ["list", "list"]):
        raise ZeroDivisionError
    assert list_tracker.closed_count == 2
    with refused("unknown-name", "'none'"), open_trackers(run, ["list", "none"]):
        pass
    assert list_tracker.closed_count == 2, "no tracker is opened if one is unknown"


def test_tensorboard_reads_the_logged_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main([*TRAIN, "--results", str(tmp_path), "--log", "tensorboard", "--name", "tour"]) == 0
    events = EventAccumulator(str(tmp_path / "runs" / "tour" / "tensorboard"))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("loss")] == [2, 4, 6]


def test_mlflow_reads_the_logged_steps_and_a_second_export_adds_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    results = ("--results", str(tmp_path))
    assert main([*TRAIN, *results, "--name", "tour", "--log", "mlflow"]) == 0
    assert main(["export", "tour", "--log", "mlflow", *results]) == 0
    client = MlflowClient(tracking_uri=trackers.mlflow_store(tmp_path))
    (experiment,) = (each for each in client.search_experiments() if each.name == "linear")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "tour" and run.data.params["train.steps"] == "6"
    assert {metric.step for metric in client.get_metric_history(run.info.run_id, "loss")} == {2, 4, 6}


def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert main([*TRAIN, "--results", str(tmp_path), "--log", "wandb", "--name", "tour"]) == 0
    assert list((tmp_path / "runs" / "tour" / "wandb").glob("offline-run-*/*.wandb"))
