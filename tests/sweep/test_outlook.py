"""Dry runs: cells that were computed without a sweep or will be refused, unmeasured steps, and missing data."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from iclbench.cli import sweep_summary
from iclbench.cli.main import main
from iclbench.config.cards import card_names
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.grids import grid_runs
from iclbench.sweep.language_grids import is_language_grid
from iclbench.sweep.outlook import Outlook, outlook_of
from iclbench.sweep.plan import make_plan
from tests.sweep.conftest import tiny_grid

RUN = "tiny-linear-gpt2-smoke-s0"


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return tiny_grid(tmp_path, backbones=("gpt2",), probe=None, evaluate={})


def run_command(*command: object, results: Path) -> None:
    assert main([*map(str, command), "--results", str(results), "--device", "cpu"]) == 0


def compute_outlook(grid: Path, results: Path) -> Outlook:
    return outlook_of(make_plan(grid_cells([str(grid)]), CellStore(results)), Context(results))


def dry_run(grid: Path, results: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["sweep", str(grid), "--dry-run", "--results", str(results), "--device", "cpu", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_results_of_separate_commands_count_as_finished_cells(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    run_command("train", tmp_path / "tiny-linear.toml", "gpt2", "-p", "smoke", results=results)
    assert compute_outlook(grid, results).existing == {"train": 1}
    run_command("eval", RUN, results=results)
    assert compute_outlook(grid, results).existing == {"train": 1, "evaluate": 5}  # the run and four baselines
    kinds = Counter(cell.kind for cell in compute_outlook(grid, results).plan.todo if cell.task == "tiny-linear")
    assert kinds == {"evaluate": 1}, "only the summary is to do"
    assert "(1 train 5 evaluate)" in dry_run(grid, results, capsys)
    # An evaluation without its table of errors is not finished.
    next((results / "tables").rglob(f"{RUN}.errors.parquet")).unlink()
    assert compute_outlook(grid, results).existing == {"train": 1, "evaluate": 4}


def test_a_dry_run_reports_runs_that_will_be_refused(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    card = tmp_path / "tiny-linear.toml"
    run_command("train", card, "gpt2", "-p", "smoke", "-o", "train.lr=0.5", results=results)
    records = json.loads(dry_run(grid, results, capsys, "--json"))
    assert f"iclbench rm {RUN}" in records["total"]["refused"][RUN]
    assert "train" not in records["tasks"][0]["to_do"]
    assert records["tasks"][0]["seconds"] is None, "the seconds are unknown, not 0"
    out = dry_run(grid, results, capsys)
    assert "2 cells" in out and f"  {RUN}: {results / 'runs' / RUN}" in out
    assert "train.lr: 0.5 -> 0.001" in out


@pytest.fixture
def without_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not measure training steps, which takes seconds."""

    def refuse(*arguments: object, **options: object) -> None:
        raise IclbenchError("not measured")

    monkeypatch.setattr(sweep_summary, "measure_step", refuse)


def test_parameters_are_counted_if_steps_are_not_measured(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the time for measurements is used up, disk space and parameters still include all training runs."""
    measured = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json"))["tasks"][0]
    monkeypatch.setattr("iclbench.sweep.estimate.MEASUREMENT_SECONDS", -1.0)
    unmeasured = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json"))["tasks"][0]
    assert unmeasured["seconds"] is None and measured["seconds"] > 0
    assert unmeasured["parameters"] == measured["parameters"] and unmeasured["bytes"] == measured["bytes"] > 0


def test_a_dry_run_names_the_device_of_its_measurements(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json"))["total"]
    assert total["devices"] == ["cpu"]
    (line,) = [line for line in dry_run(grid, tmp_path / "results", capsys).splitlines() if line.startswith("time on")]
    assert "cpu" in line


@pytest.mark.usefixtures("without_measurements")
def test_a_dry_run_names_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None, evaluate={}, tasks=["bursty", "bursty-omniglot"])
    out = dry_run(grid, tmp_path / "results", capsys)
    assert "bursty-omniglot: " in out and "--data-dir" in out
    total = json.loads(dry_run(grid, tmp_path / "results", capsys, "--json", "--data-dir", str(tmp_path)))["total"]
    ((reason, tasks),) = total["no_data"].items()
    assert str(tmp_path / "omniglot" / "images_background.zip") in reason and tasks == ["bursty-omniglot"]


SHIPPED = [name for name in card_names("grids") if not is_language_grid(name)]


@pytest.mark.slow
@pytest.mark.usefixtures("without_measurements")
@pytest.mark.parametrize(
    "grid", [name if name == "coqe-table-2" else pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED]
)
def test_a_dry_run_of_a_shipped_grid_fits_80_columns_and_names_its_missing_data(
    grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["sweep", grid, "--dry-run", "--results", str(tmp_path / "results"), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    rows = [
        line for line in out.splitlines() if line.split() and line.split()[0] in (*card_names("tasks"), "task", "all")
    ]
    assert max(map(len, rows)) <= 80
    assert {tuple(row.split()[:2]) for row in rows if row.startswith("task")} == {("task", "preset")}, (
        "every block has a header"
    )
    needed = {run.config.task.name for run in grid_runs(grid) if run.config.task.build().needs_data}
    lines = " ".join(line for line in out.splitlines() if line.startswith("no data for"))
    assert all(re.search(rf"\b{name}[,:]", lines) for name in needed)
