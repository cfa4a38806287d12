"""`iclbench cost`: rows and tables of runs and baselines, and warnings about sizes that cannot be measured."""

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
from tests.cli.conftest import RunCommand
from tests.conftest import small_card
from tests.texts import numbers

SIZES = cost_runs.CostSizes([3], [], [], 2)
SMALL = ("--points", "3", "--points", "8", "--episodes", "2")


@pytest.fixture(scope="module")
def trained_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny-linear.toml").write_text(tomli_w.dumps(small_card()))
    for name, backbone in (("plain", "gpt2"), ("learned", "gpt2-learned")):
        command = ["train", str(folder / "tiny-linear.toml"), backbone, "-p", "smoke", "-o", "train.steps=2"]
        assert main([*command, "--name", name, "--results", str(folder / "results")]) == 0
    return folder / "results"


@pytest.fixture
def results(trained_results: Path, tmp_path: Path) -> Path:
    """A copy of the results folder, to which each test writes its costs."""
    return Path(shutil.copytree(trained_results, tmp_path / "results"))


@pytest.mark.slow
def test_runs_and_baselines_are_measured_and_printed(results: Path, run: RunCommand) -> None:
    code, out, err = run("cost", *SMALL, "--points", "9", "--baseline", "all", "--results", results)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.strip()]
    sizes = {
        name: [row[9 if name in ("plain", "learned") else 5] for row in rows if row[0] == name]
        for name in ("plain", "learned", "knn-3")
    }
    assert sizes == {"plain": ["3", "8", "9"], "learned": ["3", "8"], "knn-3": ["3", "8", "9"]}
    assert {"least-squares", "zero", "mean"} <= {row[0] for row in rows}
    assert numbers(out.splitlines()[-1] or out.splitlines()[-2]) == [2]
    assert "'learned'" in err and "9 points" in err


@pytest.mark.slow
def test_batch_sizes_have_separate_tables_and_costs_of_baselines_at_other_sizes_are_retained(
    results: Path, run: RunCommand
) -> None:
    baseline = ("--baseline", "zero", "--results", results)
    run("cost", "plain", "--points", "3", "--episodes", "2", *baseline)
    run("cost", "learned", "--points", "8", "--episodes", "2", *baseline)
    _, out, _ = run("cost", "plain", "--points", "3", "--episodes", "4", *baseline)
    _, two_text, four_text = out.split("tiny-linear, smoke: ")
    two, four = two_text.splitlines(), four_text.splitlines()
    assert (numbers(two_text)[-1], numbers(four_text)[-1]) == (2, 4)
    assert [line.split()[5] for line in two if line.startswith("zero")] == ["3", "8"]
    assert [line.split()[5] for line in four if line.startswith("zero")] == ["3"]
    assert [line.split()[0] for line in two if line.startswith(("plain", "learned"))] == ["plain"]


def test_json_output_contains_only_rows_of_the_named_run(results: Path, run: RunCommand) -> None:
    code, out, _ = run("cost", "plain", *SMALL, "--json", "--results", results)
    rows = json.loads(out)
    assert code == 0
    assert {row["run"] for row in rows} == {"plain"}
    assert {row["phase"] for row in rows} == {"model", "train", "train_step", "condition", "query", "update"}


def test_calls_with_several_queries_or_new_points_have_a_separate_table(results: Path, run: RunCommand) -> None:
    words = ("cost", "plain", *SMALL[:2], *SMALL[-2:], "--queries", "5", "--queries", "9", "--update", "4")
    code, out, _ = run(*words, "--results", results)
    assert code == 0
    rows = [line.split()[:4] for line in out.splitlines() if re.match("plain +(query|update) ", line)]
    assert rows == [["plain", "query", "3", n] for n in "159"] + [["plain", "update", "3", n] for n in "14"]
    code, out, _ = run("cost", "plain", *SMALL[:2], *SMALL[-2:], "--results", results, "--json")
    stored = {(row["phase"], row["n_at_once"]) for row in json.loads(out) if row["n_at_once"] is not None}
    assert stored == {("query", 5), ("query", 9), ("update", 4)}, "earlier measurements are retained"


def test_invalid_requests_are_refused_in_one_line(results: Path, run: RunCommand) -> None:
    for arguments, name in (
        (("cost", "plian"), "'plain'"),
        (("cost", "--baseline", "knn-33"), "'knn-33'"),
        (("cost", "--points", "0"), "--points"),
        (("cost", "--queries", "0"), "--queries"),
        (("cost", "--update", "0"), "--update"),
    ):
        code, out, err = run(*arguments, "--results", results)
        assert (code, out) == (2, "") and name in err and err.count("\n") == 1


def measure_baselines(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tasks: Sequence[str], names: Sequence[object]
) -> tuple[int, list[tuple[str, str]]]:
    """Measure the costs of baselines for models on these tasks. Return the number of failures, and the measured pairs
    of task and baseline."""
    measurements: list[tuple[str, str]] = []

    def record(context: Context, contestant: PredictorContestant | None, task: TaskConfig, *_: object, train: object):  # type: ignore[no-untyped-def]
        measurements.extend([(task.name, contestant.name)] if contestant else [])
        return folder, [], 0

    monkeypatch.setattr(cost_runs, "backbone", lambda *_: None)
    monkeypatch.setattr(cost_runs, "measure_costs", record)
    monkeypatch.setattr(cost_runs, "print_costs", lambda *_: None)
    configs = [SimpleNamespace(task=resolve_task(name, "smoke")[0], preset="smoke", train=None) for name in tasks]
    models = [SimpleNamespace(name=config.task.name, config=config) for config in configs]
    return cost_runs.measure_all(Context(folder), models, [str(name) for name in names], SIZES, False), measurements


def test_baselines_can_be_named_in_any_spelling_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "my-tree.toml"
    card.write_text((cards_folder("baselines") / "decision-tree-2.toml").read_text())
    _, measurements = measure_baselines(monkeypatch, tmp_path, ["linear"], ["decision_tree_2", card, "all"])
    assert measurements[:2] == [("linear", "decision-tree-2"), ("linear", "my-tree")]
    assert ("linear", "ridge") in measurements and len(measurements) == len(set(measurements))
    _, measurements = measure_baselines(monkeypatch, tmp_path, ["linear"], ["all"])
    assert {("linear", "decision-tree-2"), ("linear", "ridge")} <= set(measurements)


def test_a_baseline_is_measured_only_on_the_tasks_to_which_it_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, measurements = measure_baselines(monkeypatch, tmp_path, ["point-process", "linear"], ["ridge"])
    assert failed == 1 and measurements == [("linear", "ridge")]
    err = capsys.readouterr().err
    assert "'ridge'" in err and "point-process" in err
    with pytest.raises(UsageError) as error:
        measure_baselines(monkeypatch, tmp_path, ["point-process"], ["ridge"])
    assert "'ridge'" in str(error.value)


@pytest.mark.parametrize(
    ("task", "changes", "sizes"),
    [
        ("linear", {}, [40, 500]),
        ("markov", {"points": 9}, [4, 9]),
        ("point-process", {"points": 9}, [4, 9]),
        ("recall", {"pairs": 4, "points": 20}, [10, 20]),
        ("recall", {"pairs": 8, "points": 20}, [20]),
    ],
)
def test_default_sizes_exceed_the_training_length_only_for_tasks_with_inputs(
    task: str, changes: dict[str, int], sizes: list[int]
) -> None:
    config = resolve_task(task, "smoke", changes)[0]
    assert cost_runs.default_points(config) == sizes


def test_costs_of_a_stream_are_measured_without_a_size(tmp_path: Path, run: RunCommand) -> None:
    small = ["-o", "task.points=5", "-o", "train.steps=1", "-o", "train.batch=2", "-o", "backbone.width=8"]
    options = [*small, "-o", "backbone.layers=1", "-o", "backbone.heads=2", "--name", "m", "--results", tmp_path]
    assert run("train", "markov", "gpt2-learned", "-p", "smoke", *options)[0] == 0
    code, out, err = run("cost", "m", "--episodes", 2, "--json", "--results", tmp_path)
    assert code == 0 and "skipped" not in err
    assert {row["n_points"] for row in json.loads(out) if row["phase"] == "query"} == {2, 5}
