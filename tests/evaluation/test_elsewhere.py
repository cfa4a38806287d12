"""Evaluation on a task that differs from the training task: prompts, names of contestants, and errors."""

from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import inventory
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.conftest import small_card

NOISY = small_card(family="noisy-linear", parameters={"noise": 2.0}, oracles=["ridge"])


def card(folder: Path, name: str, **changes: object) -> str:
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps({**NOISY, **changes}))
    return str(path)


def presets_with(**sizes: object) -> dict[str, object]:
    return {"smoke": {**small_card()["presets"]["smoke"], **sizes}}  # type: ignore[index]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("elsewhere")
    home_card = folder / "home.toml"
    home_card.write_text(tomli_w.dumps(small_card()))
    trained_run = create(folder, resolve_run(str(home_card), "gpt2", "smoke", 0))
    train(trained_run)
    return trained_run


def results(run: Run) -> Path:
    return run.path.parents[1]


@pytest.mark.slow
def test_prompts_are_from_the_evaluation_task_and_the_contestant_names_the_training_task(run: Run) -> None:
    folder = results(run)
    noisy = card(folder, "noisy")
    assert main(["eval", run.name, "--results", str(folder)]) == 0
    home_score = inventory.scores(folder)[run.name, "home"]
    assert main(["eval", run.name, "--task", noisy, "--shift", "noisy-3", "--results", str(folder)]) == 0
    rows = tables.read_all("values", folder / "tables").query("task == 'noisy'")
    model_rows = rows.query("kind == 'backbone'")
    assert set(model_rows["contestant"]) == {"gpt2@home"} and set(model_rows["trained_on"]) == {"home"}
    assert set(model_rows["run"]) == {run.name} and set(model_rows["shift"]) == {"none", "noisy-3"}
    assert rows.query("kind != 'backbone'")["trained_on"].isna().all()
    assert set(rows["contestant"]) == {"gpt2@home", "ridge", "zero", "mean", "knn-3"}
    prompts = PromptSet(resolve_task(noisy, "smoke")[0], "smoke")
    assert set(rows.query("shift == 'none'")["prompt_set"]) == {prompts.id}, (
        "runs trained on this task have the same prompt set"
    )
    with torch.inference_mode():
        answers = run.load("cpu").predict_next(prompts.episodes.context).mean
    errors = (answers - prompts.episodes.context.y).square().mean((0, 2)).numpy() / 3
    actual = model_rows.query("shift == 'none' and metric == 'squared_error'").sort_values("n_context")["value"]
    np.testing.assert_allclose(actual.to_numpy(float), errors, rtol=1e-4)
    assert inventory.scores(folder)[run.name, "home"] == home_score, "the listed score of a run is on its training task"


def test_the_training_task_may_be_named_explicitly(run: Run) -> None:
    folder = results(run)
    assert main(["eval", run.name, "--task", str(folder / "home.toml"), "--results", str(folder)]) == 0
    rows = tables.read_all("values", folder / "tables").query("task == 'home' and kind == 'backbone'")
    assert set(rows["contestant"]) == {"gpt2"} and rows["trained_on"].isna().all()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"presets": presets_with(parameters={"dim": 4})}, ["input dimensions", "4", "3"]),
        ({"presets": presets_with(points=9)}, ["examples", "9", "8"]),
        ({"head": "gaussian"}, ["head", "gaussian", "point", "add -o task.head=point"]),
    ],
)
def test_a_task_with_a_different_shape_is_refused(
    changes: dict[str, object], names: list[str], run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(tables.files("values", results(run) / "tables"))
    code = main(["eval", run.name, "--task", card(tmp_path, "other", **changes), "--results", str(results(run))])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and all(name in line for name in (f"'{run.name}'", "'other'", *names))
    assert sorted(tables.files("values", results(run) / "tables")) == files


def test_runs_with_different_heads_are_compared_on_the_same_prompts(run: Run, tmp_path: Path) -> None:
    other, folder = card(tmp_path, "spread", head="gaussian"), results(run)
    words = ["eval", run.name, "--task", other, "-o", "task.head=point", "--results", str(folder)]
    assert main([*words, "--baseline", "zero"]) == 0
    rows = tables.read_all("values", folder / "tables").query("task == 'spread' and kind == 'backbone'")
    assert rows["value"].notna().all()
    assert set(rows["prompt_set"]) == {PromptSet(resolve_task(other, "smoke")[0], "smoke").id}


def test_the_options_task_and_table_exclude_each_other(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "eval",
        run.name,
        "--task",
        "linear",
        "--csv",
        "a.csv",
        "--target",
        "y",
        "--results",
        str(results(run)),
    ]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "--csv" in err and "--task" in err


def test_an_unknown_task_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", run.name, "--task", "linaer", "--results", str(results(run))]) == 2
    assert "'linear'" in capsys.readouterr().err


def test_a_tabular_model_can_be_evaluated_on_a_different_number_of_columns(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text(tomli_w.dumps(small_card()))
    run = create(tmp_path, resolve_run(str(tmp_path / "home.toml"), "cells", "smoke", 0))
    train(run)
    wide = card(tmp_path, "wide", presets=presets_with(parameters={"dim": 7}))
    assert main(["eval", run.name, "--task", wide, "--results", str(tmp_path), "--baseline", "zero"]) == 0
    rows = tables.read_all("values", tmp_path / "tables").query("kind == 'backbone'")
    assert set(rows["task"]) == {"wide"} and rows["value"].notna().all()


def test_settings_of_the_evaluation_task_can_be_changed(run: Run, tmp_path: Path) -> None:
    folder, noisy = results(run), card(tmp_path, "noisier")
    words = ["eval", run.name, "--task", noisy, "-o", "task.noise=3.0", "-o", "task.points=5", "--results", str(folder)]
    assert main([*words, "--baseline", "zero"]) == 0
    rows = tables.read_all("values", folder / "tables").query("task == 'noisier'")
    task = resolve_task(noisy, "smoke", {"noise": 3.0, "points": 5})[0]
    assert task.parameters["noise"] == 3.0 and set(rows["prompt_set"]) == {PromptSet(task, "smoke").id}
    assert rows["n_context"].max() == 5


def test_without_another_task_only_locations_of_data_can_be_changed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", run.name, "-o", "task.dim=2", "--results", str(results(run))]) == 2
    assert "data files of task 'home'" in capsys.readouterr().err
    words = ["eval", run.name, "--csv", "a.csv", "--target", "y", "-o", "task.dim=2", "--results", str(results(run))]
    assert main(words) == 2
    assert "-o task.KEY" in capsys.readouterr().err
