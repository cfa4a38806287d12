"""`iclbench cost`: rows and a table for every run, one line for what cannot be measured."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

from iclbench.cli import cost_runs
from iclbench.cli.main import main
from iclbench.config.cards import cards_folder
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.evaluation.contestants import PredictorContestant
from tests.conftest import small_card

SIZES = cost_runs.Sizes([3], [], [], 2)
SMALL = ("--points", "3", "--points", "8", "--episodes", "2")


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny-linear.toml").write_text(tomli_w.dumps(small_card()))
    for name, backbone in (("plain", "gpt2"), ("learned", "gpt2-learned")):
        command = ["train", str(folder / "tiny-linear.toml"), backbone, "-p", "smoke", "-o", "train.steps=2"]
        assert main([*command, "--name", name, "--results", str(folder / "results")]) == 0
    return folder / "results"


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    """A copy to write costs to."""
    return Path(shutil.copytree(trained, tmp_path / "results"))


def test_runs_and_baselines_are_measured_and_shown(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("cost", *SMALL, "--points", "9", "--baseline", "all", "--results", results, capsys=capsys)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.strip()]
    sizes = {
        who: [row[9 if who in ("plain", "learned") else 5] for row in rows if row[0] == who]
        for who in ("plain", "learned", "knn-3")
    }
    assert sizes == {"plain": ["3", "8", "9"], "learned": ["3", "8"], "knn-3": ["3", "8", "9"]}
    assert {"least-squares", "zero", "mean"} <= {row[0] for row in rows}
    assert "batches of 2" in out
    assert "'learned' at 9 points left out" in err


@pytest.mark.slow
def test_batches_are_shown_apart_and_a_baseline_keeps_its_other_sizes(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = ("--baseline", "zero", "--results", results)
    run("cost", "plain", "--points", "3", "--episodes", "2", *baseline, capsys=capsys)
    run("cost", "learned", "--points", "8", "--episodes", "2", *baseline, capsys=capsys)
    _, out, _ = run("cost", "plain", "--points", "3", "--episodes", "4", *baseline, capsys=capsys)
    two_text, two_size, four_text, four_size = re.split(r"in batches of (\d+)\.", out)[:4]
    two, four = two_text.splitlines(), four_text.splitlines()
    assert (two_size, four_size) == ("2", "4")
    assert [line.split()[5] for line in two if line.startswith("zero")] == ["3", "8"]
    assert [line.split()[5] for line in four if line.startswith("zero")] == ["3"]
    assert [line.split()[0] for line in two if line.startswith(("plain", "learned"))] == ["plain"]


def test_json_holds_the_rows_of_the_named_run_alone(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("cost", "plain", *SMALL, "--json", "--results", results, capsys=capsys)
    rows = json.loads(out)
    assert code == 0
    assert {row["run"] for row in rows} == {"plain"}
    assert {row["phase"] for row in rows} == {"model", "train", "train_step", "condition", "query", "update"}


def test_several_at_once_are_shown_beside_one(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("cost", "plain", *SMALL[:2], *SMALL[-2:], "--queries", "5", "--queries", "9", "--update", "4")
    code, out, _ = run(*asked, "--results", results, capsys=capsys)
    assert code == 0
    below = out.partition("several in one call")[2].splitlines()
    rows = [line.split()[:4] for line in below if line.startswith("plain")]
    assert rows == [["plain", "query", "3", n] for n in "159"] + [["plain", "update", "3", n] for n in "14"]
    code, out, _ = run("cost", "plain", *SMALL[:2], *SMALL[-2:], "--results", results, "--json", capsys=capsys)
    kept = {(row["phase"], row["n_at_once"]) for row in json.loads(out) if row["n_at_once"] is not None}
    assert kept == {("query", 5), ("query", 9), ("update", 4)}, "what is not measured again stays"


def test_a_wrong_request_is_one_line(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (("cost", "plian"), "did you mean 'plain'"),
        (("cost", "--baseline", "knn-33"), "unknown baseline"),
        (("cost", "--points", "0"), "--points"),
        (("cost", "--queries", "0"), "--queries"),
        (("cost", "--update", "0"), "--update"),
    ):
        code, out, err = run(*arguments, "--results", results, capsys=capsys)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def measured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tasks: Sequence[str], named: Sequence[object]
) -> tuple[int, list[tuple[str, str]]]:
    """How many measurements fail, and which baselines are measured on which task, of models on these tasks."""
    found: list[tuple[str, str]] = []

    def note(context: Context, contestant: PredictorContestant | None, task: TaskConfig, *_: object, train: object):  # type: ignore[no-untyped-def]
        found.extend([(task.name, contestant.name)] if contestant else [])
        return folder, [], 0

    monkeypatch.setattr(cost_runs, "backbone", lambda *_: None)
    monkeypatch.setattr(cost_runs, "measure_costs", note)
    monkeypatch.setattr(cost_runs, "print_costs", lambda *_: None)
    configs = [SimpleNamespace(task=resolve_task(name, "smoke")[0], preset="smoke", train=None) for name in tasks]
    models = [SimpleNamespace(name=config.task.name, config=config) for config in configs]
    return cost_runs.measure_all(Context(folder), models, [str(name) for name in named], SIZES, False), found


def test_a_baseline_is_measured_in_any_spelling_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "my-tree.toml"
    own.write_text((cards_folder("baselines") / "decision-tree-2.toml").read_text())
    _, found = measured(monkeypatch, tmp_path, ["linear"], ["decision_tree_2", own, "all"])
    assert found[:2] == [("linear", "decision-tree-2"), ("linear", "my-tree")]
    assert ("linear", "ridge") in found and len(found) == len(set(found))
    _, of_card = measured(monkeypatch, tmp_path, ["linear"], ["all"])
    assert {("linear", "decision-tree-2"), ("linear", "ridge")} <= set(of_card)


def test_a_baseline_that_fits_one_of_the_tasks_is_measured_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, found = measured(monkeypatch, tmp_path, ["point-process", "linear"], ["ridge"])
    assert failed == 1 and found == [("linear", "ridge")]
    line = "skipped baseline 'ridge' on point-process, smoke: baseline 'ridge' predicts numbers"
    assert line in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UsageError, match="baseline 'ridge' predicts numbers"):
        measured(monkeypatch, tmp_path, ["point-process"], ["ridge"])
