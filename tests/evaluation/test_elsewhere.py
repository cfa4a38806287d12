"""A run on the prompts of a task that it was not trained on: everybody's prompts, under a name of its own."""

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


def other_size(**sizes: object) -> dict[str, object]:
    return {"smoke": {**small_card()["presets"]["smoke"], **sizes}}  # type: ignore[index]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("elsewhere")
    own = folder / "home.toml"
    own.write_text(tomli_w.dumps(small_card()))
    trained = create(folder, resolve_run(str(own), "gpt2", "smoke", 0))
    train(trained)
    return trained


def results(run: Run) -> Path:
    return run.path.parents[1]


def test_the_prompts_are_those_of_the_task_and_the_name_says_where_it_was_trained(run: Run) -> None:
    folder = results(run)
    noisy = card(folder, "noisy")
    assert main(["eval", run.name, "--results", str(folder)]) == 0
    own_score = inventory.scores(folder)[run.name]
    assert main(["eval", run.name, "--task", noisy, "--shift", "noisy-3", "--results", str(folder)]) == 0
    rows = tables.read_all("values", folder / "tables").query("task == 'noisy'")
    mine = rows.query("kind == 'backbone'")
    assert set(mine["contestant"]) == {"gpt2@home"} and set(mine["trained_on"]) == {"home"}
    assert set(mine["run"]) == {run.name} and set(mine["shift"]) == {"none", "noisy-3"}
    assert rows.query("kind != 'backbone'")["trained_on"].isna().all()
    assert set(rows["contestant"]) == {"gpt2@home", "ridge", "zero", "mean", "knn-3"}
    prompts = PromptSet(resolve_task(noisy, "smoke")[0], "smoke")
    assert set(rows.query("shift == 'none'")["prompt_set"]) == {prompts.id}, "the same as of runs trained on it"
    with torch.inference_mode():
        answers = run.load("cpu").predict_next(prompts.episodes.context).mean
    errors = (answers - prompts.episodes.context.y).square().mean((0, 2)).numpy() / 3
    found = mine.query("shift == 'none' and metric == 'squared_error'").sort_values("n_context")["value"]
    np.testing.assert_allclose(found.to_numpy(float), errors, rtol=1e-4)
    assert inventory.scores(folder)[run.name] == own_score, "a score on another task does not stand for a run"


def test_its_own_task_by_name_is_no_other(run: Run) -> None:
    folder = results(run)
    assert main(["eval", run.name, "--task", str(folder / "home.toml"), "--results", str(folder)]) == 0
    rows = tables.read_all("values", folder / "tables").query("task == 'home' and kind == 'backbone'")
    assert set(rows["contestant"]) == {"gpt2"} and rows["trained_on"].isna().all()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"presets": other_size(parameters={"dim": 4})}, "input dimensions 4 there, 3 here"),
        ({"presets": other_size(points=9)}, "9 examples there, trained with 8"),
        ({"head": "gaussian"}, "head gaussian there, point here"),
    ],
)
def test_what_has_another_shape_is_refused_in_one_line(
    changes: dict[str, object], why: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tables.files("values", results(run) / "tables"))
    code = main(["eval", run.name, "--task", card(tmp_path, "other", **changes), "--results", str(results(run))])
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and len(said) == 1
    assert f"run '{run.name}' cannot be asked the prompts of task 'other': {why}" in said[0]
    assert sorted(tables.files("values", results(run) / "tables")) == before


def test_a_task_and_a_table_do_not_go_together(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", run.name, "--task", "linear", "--csv", "a.csv", "--target", "y", "--results", str(results(run))]
    assert main(words) == 2 and "--csv cannot be used with --task" in capsys.readouterr().err
    assert main(["eval", run.name, "--task", "linaer", "--results", str(results(run))]) == 2
    assert "did you mean 'linear'" in capsys.readouterr().err
