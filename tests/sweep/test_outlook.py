"""A dry run counts as work what is work: not what was done by hand, and not what will be refused."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from iclbench.cli import sweep_summary
from iclbench.cli.main import main
from iclbench.config.cards import names
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError
from iclbench.store.cells import Store
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.grids import grid_runs
from iclbench.sweep.language_grids import is_language_grid
from iclbench.sweep.outlook import Outlook, outlook_of
from iclbench.sweep.plan import plan
from tests.sweep.conftest import tiny_grid

RUN = "tiny-linear-gpt2-smoke-s0"


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return tiny_grid(tmp_path, backbones=("gpt2",), probe=None, evaluate={})


def by_hand(*command: object, results: Path) -> None:
    assert main([*map(str, command), "--results", str(results), "--device", "cpu"]) == 0


def found(grid: Path, results: Path) -> Outlook:
    return outlook_of(plan(grid_cells([str(grid)]), Store(results)), Context(results))


def dry_run(grid: Path, results: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["sweep", str(grid), "--dry-run", "--results", str(results), "--device", "cpu", *options]) == 0
    return capsys.readouterr().out


def test_what_was_trained_and_evaluated_by_hand_is_done(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    by_hand("train", tmp_path / "tiny-linear.toml", "gpt2", "-p", "smoke", results=results)
    assert found(grid, results).existing == {"train": 1}
    by_hand("eval", RUN, results=results)
    assert found(grid, results).existing == {"train": 1, "evaluate": 5}  # the run, and four baselines
    left = Counter(cell.kind for cell in found(grid, results).plan.todo if cell.task == "tiny-linear")
    assert left == {"evaluate": 1}, "the summary of all"
    shown = dry_run(grid, results, capsys)
    assert "6 of the done cells" in shown and "(1 train 5 evaluate)" in shown
    # An evaluation that is gone, or of other weights, is none.
    next((results / "tables").rglob(f"{RUN}.errors.parquet")).unlink()
    assert found(grid, results).existing == {"train": 1, "evaluate": 4}


def test_a_run_that_will_be_refused_is_said_to_be_and_counts_no_time(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    card = tmp_path / "tiny-linear.toml"
    by_hand("train", card, "gpt2", "-p", "smoke", "-o", "train.lr=0.5", results=results)
    said = json.loads(dry_run(grid, results, capsys, "--json"))
    assert f"iclbench rm {RUN}" in said["total"]["refused"][RUN]
    assert "train" not in said["tasks"][0]["to_do"]
    assert said["tasks"][0]["seconds"] is None, "nothing of this task is known to take 0 s"
    shown = dry_run(grid, results, capsys)
    assert "2 cells of these will fail" in shown and f"  {RUN}: {results / 'runs' / RUN} holds a run" in shown
    assert "train.lr: 0.5 -> 0.001" in shown


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are not measured, which takes long."""

    def refuse(*arguments: object, **more: object) -> None:
        raise IclbenchError("not measured")

    monkeypatch.setattr(sweep_summary, "measure_step", refuse)


def test_parameters_are_counted_where_steps_are_not_measured(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for measuring steps may be over: disk and parameters are those of all trainings nevertheless."""
    measured = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json"))["tasks"][0]
    monkeypatch.setattr("iclbench.sweep.estimate.BUDGET", -1.0)
    late = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json"))["tasks"][0]
    assert late["seconds"] is None and measured["seconds"] > 0
    assert late["parameters"] == measured["parameters"] and late["bytes"] == measured["bytes"] > 0


@pytest.mark.usefixtures("unmeasured")
def test_a_dry_run_says_which_data_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None, evaluate={}, tasks=["bursty", "bursty-omniglot"])
    shown = dry_run(grid, tmp_path / "results", capsys)
    assert "no data for bursty-omniglot: the archives of Omniglot are needed: point --data-dir" in shown
    said = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json", "--data-dir", str(tmp_path)))
    ((why, tasks),) = said["total"]["no_data"].items()
    assert f"cannot read {tmp_path / 'omniglot' / 'images_background.zip'}" in why and tasks == ["bursty-omniglot"]


SHIPPED = [name for name in names("grids") if not is_language_grid(name)]


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    "grid", [name if name == "coqe-table-2" else pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED]
)
def test_a_dry_run_of_a_shipped_grid_fits_into_80_columns_and_names_its_data(
    grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["sweep", grid, "--dry-run", "--results", str(tmp_path / "results"), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.split() and line.split()[0] in (*names("tasks"), "task", "all")]
    assert max(map(len, rows)) <= 80
    assert {tuple(row.split()[:2]) for row in rows if row.startswith("task")} == {("task", "preset")}, "every block"
    needed = {run.config.task.name for run in grid_runs(grid) if run.config.task.build().needs_data}
    told = " ".join(line for line in shown.splitlines() if line.startswith("no data for"))
    assert all(re.search(rf"\b{name}[,:]", told) for name in needed)
