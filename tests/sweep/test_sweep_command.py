"""The command `iclbench sweep`: options, dry runs, tables and errors."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.backbones.gpt2 import GPT2
from iclbench.cli import sweep_results, sweep_run
from iclbench.cli.main import main
from iclbench.cli.sweep_cells import selected_cells
from iclbench.cli.sweep_jobs import cluster
from iclbench.cli.sweep_run import devices
from iclbench.cli.sweep_summary import print_dry_run, print_outcomes, untuned_lines
from iclbench.cli.sweep_view import cell_label, view
from iclbench.config.cards import cards_folder
from iclbench.core.context import Context
from iclbench.store.cells import CellStore, record
from iclbench.store.outcome import Outcome
from iclbench.sweep import pack, verify
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.plan import Plan, make_plan
from tests.inline_executor import InlineExecutor
from tests.sweep.conftest import tiny_grid


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["sweep", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["refrence"], ("'refrence'", "'reference'")),
        (["./missing.toml"], ("missing.toml",)),
        (["deep-thinking-3", "--pack", "mine"], ("'deep-thinking-3'", "--pack")),
        (["deep-thinking-3", "--verify", "1"], ("'deep-thinking-3'", "--verify")),
        (["GRID", "--only", "trian"], ("'trian'", "'train'")),
        (["GRID", "--preset", "smok"], ("'smok'", "'smoke'")),
        (["GRID", "--tasks", "tiny-linear,quadratic"], ("'quadratic'", "'tiny-quadratic'")),
        (["GRID", "--contestants", "gpt3"], ("'gpt3'", "'gpt2'")),
        (["GRID", "--verify", "1", "--contestants", "gpt2"], ("--verify", "--contestants")),
        (["GRID", "--verify", "1", "--engine", "slurm"], ("--verify", "--engine")),
        (["GRID", "--pack", "mine", "--jobs", "2"], ("--pack", "--jobs")),
        (["GRID", "--pack", "mine", "--detach"], ("--pack", "--detach")),
        (["GRID", "--pack", "mine", "--status"], ("--pack", "--status")),
        (["GRID", "--pack", "mine", "--per-gpu", "2"], ("--pack", "--per-gpu")),
        (["GRID", "--workers", "0"], ("--workers",)),
        (["GRID", "--device", "tpu"], ("tpu",)),
        (["GRID", "--pack", "mine", "--verify", "1"], ("--pack", "--verify")),
    ],
)
def test_wrong_names_and_conflicting_options_are_refused_with_a_one_line_error(
    arguments: list[str], names: tuple[str, ...], grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(grid) if argument == "GRID" else argument for argument in arguments]
    code, out, err = run(*words, "--results", tmp_path / "results", capsys=capsys)
    assert (code, out) == (2, "")
    assert all(name in err for name in names) and err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_packing_without_results_and_a_file_as_results_folder_are_refused(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "results", tmp_path / "file"
    file.touch()
    for arguments, name in (
        (["--results", folder, "--pack", folder / "mine"], folder),
        (["--results", file], file),
    ):
        code, out, err = run(grid, *arguments, capsys=capsys)
        assert (code, out) == (2, "")
        assert str(name) in err and err.count("\n") == 1
    assert not folder.exists()


def test_a_dry_run_counts_cells_that_need_an_excluded_kind_of_cell(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each of two tasks, two evaluations and a summary need training runs. Baselines do not."""
    words = [grid, "--only", "evaluate", "--results", tmp_path / "results"]
    code, out, _ = run(*words, "--dry-run", capsys=capsys)
    assert code == 0 and "6 cells" in out
    todo = next(line for line in out.splitlines() if line.split()[:1] == ["all"])
    assert "8 evaluate" in todo


def test_tasks_and_contestants_select_cells(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cells are a training run, its evaluation and probe, and the summary of the evaluated contestants."""
    words = [grid, "--tasks", "tiny_linear", "--contestants", "gpt2", "--results", tmp_path / "results", "--dry-run"]
    code, out, _ = run(*words, "--json", capsys=capsys)
    records = json.loads(out)
    assert code == 0 and [task["task"] for task in records["tasks"]] == ["tiny-linear"]
    assert records["total"]["to_do"] == {"train": 1, "evaluate": 2, "probe": 1}
    code, out, _ = run(*words, "--contestants", "gpt2,least-squares", "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["total"]["to_do"]["evaluate"] == 3


def test_a_task_without_the_selected_preset_has_no_cells(tmp_path: Path) -> None:
    small = {"tasks": ["linear"], "backbones": ["cnp"], "presets": ["small"], "seeds": [0]}
    path = str(tiny_grid(tmp_path, backbones=("cnp",), more=[small]))
    assert {cell.task for cell in selected_cells([path], "small", None, [], tmp_path)} == {"linear"}
    assert selected_cells([path], "small", "tiny-linear", [], tmp_path) == []


@pytest.mark.slow
def test_the_summary_covers_the_contestants_that_are_evaluated(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repeated command has nothing to do, and a later summary includes contestants that were evaluated earlier."""
    results = tmp_path / "results"
    words = [grid, "--tasks", "tiny-linear", "--results", results, "--workers", "1"]

    def scored_contestants() -> set[str]:
        values = tables.read_all("values", results)
        return set(values.loc[values["metric"].eq("score"), "contestant"])

    for contestants, expected in (("zero,least-squares", {"zero", "least-squares"}), ("knn-3", {"knn-3"})):
        assert run(*words, "--contestants", contestants, capsys=capsys)[0] == 0
        assert scored_contestants() >= expected
        _, out, _ = run(*words[:-2], "--contestants", contestants, "--dry-run", "--json", capsys=capsys)
        assert json.loads(out)["total"]["to_do"] == {}
    assert scored_contestants() == {"zero", "least-squares", "knn-3"}
    _, out, _ = run(*words[:-2], "--dry-run", "--json", capsys=capsys)
    assert json.loads(out)["total"]["to_do"]["evaluate"] >= 2  # the trained model and the summary


@pytest.mark.slow
def test_a_dry_run_of_finished_cells_has_no_columns_for_time_and_disk(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [grid, "--contestants", "least-squares", "--results", tmp_path / "results"]
    headers = []
    for options in (["--dry-run"], ["--workers", "1"], ["--dry-run"]):
        code, out, _ = run(*words, *options, capsys=capsys)
        headers.append(out.splitlines()[0].split())
        assert code == 0
    assert "time" in headers[0] and not {"work", "time", "disk"} & {*headers[2]}


def test_warnings_of_workers_are_printed(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid_cells([str(grid)])
    store = CellStore(tmp_path / "results")
    with view(make_plan(cells, store), store, 1) as report:
        report.on_start(cells[0])
        report.on_finish(cells[0], Outcome("done", warnings=("a warning",)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"WARNING: {cell_label(cells[0])}: a warning"


def test_a_closed_stdout_is_not_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `iclbench sweep GRID --dry-run >&-`, where `sys.stdout` is None."""
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["sweep", str(grid), "--dry-run", "--results", str(tmp_path / "results")]) == 0
    assert "error: " not in capsys.readouterr().err


# Slow, because a process imports torch.
@pytest.mark.slow
def test_a_stdout_closed_by_the_shell_is_not_an_error(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None)
    command = f"{sys.executable} -m iclbench sweep {grid} --dry-run --results {tmp_path / 'results'} >&-"
    process = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert process.returncode == 0 and "error: " not in process.stderr, process.stderr


def test_a_dry_run_counts_cells_and_writes_nothing(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two tasks has two training runs, their evaluations and probes, four baselines and a summary."""
    results = tmp_path / "results"
    code, out, err = run(grid, "--dry-run", "--json", "--results", results, capsys=capsys)
    assert code == 0, err
    records = json.loads(out)
    assert records["total"]["to_do"] == {"train": 4, "evaluate": 14, "probe": 4}
    assert [line["task"] for line in records["tasks"]] == ["tiny-linear", "tiny-quadratic"]
    for line in records["tasks"]:
        assert line["seconds"] > 0, "training steps are measured"
        assert line["unknown"] == {"evaluate": 7, "probe": 2}, "other cells are not estimated"
    assert not results.exists()


def test_a_dry_run_with_an_engine_describes_its_jobs(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iclbench.sweep.engines.find_spec", lambda name: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = (grid, "--dry-run", "--engine", "slurm", "--jobs", "1", "--results", tmp_path / "results")
    code, out, err = run(*words, "--json", capsys=capsys)
    assert code == 0, err
    records = json.loads(out)
    jobs = records["total"]["jobs"]
    assert (jobs["cpus"], jobs["memory"], jobs["at_once"]) == (1, "4G", 1)
    assert jobs["cells_of_unknown_length"] == 18 and jobs["cells_per_job"][0] >= 1
    makespans = {makespan["at_once"]: makespan for makespan in jobs["makespan"]}
    assert list(makespans) == [1, 8, 32, 128, 512]
    assert makespans[8]["seconds"] < makespans[1]["seconds"] <= makespans[1]["seconds_with_deaths"]
    # Expected: measured training times, one minute per other cell, and ten seconds to start each job.
    training_seconds = sum(line["seconds"] for line in records["tasks"])
    assert makespans[1]["seconds"] == pytest.approx(training_seconds + 18 * 60 + 10 * jobs["jobs"])
    code, out, err = run(*words, capsys=capsys)
    assert code == 0, err
    assert "18 cells" in out and "5%" in out
    # If the jobs use GPUs of other machines, nothing is measured on this machine.
    code, out, err = run(*words, "--device", "cuda", "--json", capsys=capsys)
    assert code == 0, err
    jobs = json.loads(out)["total"]["jobs"]
    assert jobs["gpus"] == 1 and jobs["cells_of_unknown_length"] == 22


def test_grids_with_different_resources_are_not_swept_together(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iclbench.sweep.engines.find_spec", lambda name: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    options = ("--dry-run", "--json", "--engine", "slurm", "--results", tmp_path / "results")
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text(grid.read_text() + '\n[engine]\ncpus = 4\nmemory = "9G"\n')
    small.write_text(grid.read_text() + '\n[engine]\ncpus = 4\nmemory = "2G"\n')
    code, _, err = run(large, small, *options, capsys=capsys)
    names = ("[engine]", f"'{large}'", f"'{small}'", "memory", "9G", "2G")
    assert code == 2 and all(name in err for name in names)
    small.write_text(grid.read_text() + "\n[engine]\ncpus = 4\n")
    merged = cluster("slurm", [str(large), str(grid), str(small)], None, None, False, False)
    assert merged is not None and (merged.settings.cpus, merged.settings.memory) == (4, "9G")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--engine", "slurm", "--detach", "--status"], ("--status", "--detach")),
        (["--engine", "slurm", "--detach", "--dry-run"], ("--dry-run", "--detach")),
        (["--engine", "slurm", "--per-gpu", "2"], ("--per-gpu", "'slurm'")),
        (["--engine", "slurm", "--status"], ("results",)),
    ],
)
def test_invalid_engine_options_are_refused(
    options: list[str],
    names: tuple[str, ...],
    grid: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("iclbench.sweep.engines.find_spec", lambda name: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, _, err = run(grid, *options, "--results", tmp_path / "results", capsys=capsys)
    assert code == 2 and all(name in err for name in names) and not (tmp_path / "results").exists()


def test_estimates_use_recorded_seconds_parameters_and_sizes(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run of seed 0 took 0.5 s per step, and the run of seed 1 still needs four steps."""
    from iclbench import tables
    from iclbench.cli.sweep_view import duration_text

    card = tiny_grid(tmp_path, backbones=("gpt2",), seeds=[0, 1], evaluate=None, probe=None)
    results = tmp_path / "results"
    cells = grid_cells([str(card)])
    common = {"task": "tiny-linear", "contestant": "gpt2", "preset": "smoke", "device": "cpu", "threads": 1}
    common |= {"version": "0", "run": "tiny-linear-gpt2-smoke-s0"}
    rows = [
        {**common, "phase": "model", "metric": "parameters", "value": 1000.0},
        {**common, "phase": "train_step", "metric": "seconds", "value": 0.5},
        {**common, "phase": "train_step", "metric": "seconds", "value": 99.0, "n_points": 8},  # a cost measurement
    ]
    path = results / "runs" / "tiny-linear-gpt2-smoke-s0" / "costs.parquet"
    tables.write("costs", rows, path, {})
    finished = next(cell for cell in cells if cell.task == "tiny-linear" and cell.seed == 0)
    CellStore(results).record(finished, Outcome("done", None, (str(path.relative_to(results)),), 2.0), Context(results))
    code, out, err = run(card, "--dry-run", "--json", "--workers", "2", "--results", results, capsys=capsys)
    assert code == 0, err
    linear = json.loads(out)["tasks"][0]
    assert linear["cells"]["train"] == {"done": 1, "to do": 1} and linear["to_do"] == {"train": 1}
    assert linear["seconds"] == pytest.approx(4 * 0.5)
    assert linear["parameters"] == [1000, 1000]
    assert linear["bytes"] == 1000 * (4 + 2 * 12), (
        "the files are the weights and two checkpoints with both moments of Adam"
    )
    assert [duration_text(s) for s in (4.2, 250.0, 7300.0, 200_000.0)] == ["4 s", "4 min", "2 h 1 min", "2 d 7 h"]


@pytest.mark.slow
def test_a_sweep_ends_with_a_table_and_the_next_one_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second task cannot be trained, because there is a file at the path of its run folder."""
    # A worker process would import torch. `test_kill.py` tests workers.
    monkeypatch.setattr("iclbench.cli.sweep_run.worker_pool", lambda slots, threads: InlineExecutor())
    grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    quadratic = tmp_path / "tiny-quadratic.toml"
    results = tmp_path / "results"
    (results / "runs").mkdir(parents=True)
    (results / "runs" / "tiny-quadratic-gpt2-smoke-s0").touch()
    code, out, err = run(grid, "--workers", "1", "--results", results, capsys=capsys)
    assert code == 1, err
    assert "train tiny-quadratic-gpt2-smoke-s0" in out
    assert "run 'tiny-quadratic-gpt2-smoke-s0'" in out.replace("\n", " ")
    assert "2 cells" in err
    todo = make_plan(grid_cells([str(grid)]), CellStore(results)).todo
    assert {cell.run for cell in todo if cell.kind == "train"} == {"tiny-quadratic-gpt2-smoke-s0"}
    assert {cell.task for cell in todo} == {"tiny-quadratic"}, "the other task is done"
    finished_grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    quadratic.unlink()
    finished_grid.write_text(finished_grid.read_text().replace(f'    "{quadratic}",\n', ""))
    code, out, err = run(finished_grid, "--results", results, capsys=capsys)
    assert (code, err) == (0, ""), "no cell starts"
    assert out.splitlines()[-1].split() == ["all", "7", "0", "0", "0"]


@pytest.mark.parametrize(
    ("typed", "visible", "expected"),
    [
        ("auto", None, ["0", "1"]),
        ("cuda", "GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
        ("cuda:1", None, ["1"]),
        ("cuda:1", "4,7", ["7"]),
        ("cpu", None, []),
    ],
)
def test_workers_may_use_every_visible_gpu(
    typed: str, visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has two GPUs, and names have the format of `CUDA_VISIBLE_DEVICES`."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    kind, gpus = devices(typed)
    assert (kind, gpus) == ("cuda" if expected else "cpu", expected)


def test_diverged_cells_are_printed_with_their_reason_and_counted_in_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), evaluate=None, probe=None)
    cells = grid_cells([str(grid)])
    results = CellStore(tmp_path / "results")
    before = make_plan(cells, results)
    print_outcomes(before, {})
    assert "diverged" not in capsys.readouterr().out
    outcome = Outcome("diverged", "diverged at step 3: the loss is nan")
    record(results.results, cells[0], outcome, Context(results.results))
    after = make_plan(cells, CellStore(results.results))
    assert print_outcomes(after, {cells[0].hash: outcome}) == 0, "a diverged cell does not count as failed"
    assert f"train tiny-linear-gpt2-smoke-s0: {outcome.reason}" in capsys.readouterr().out
    print_dry_run(after, results, "cpu", None, 1)
    header, row, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert row[0] == "tiny-linear" and row[header.index("diverged")] == "1"


def test_a_dry_run_counts_the_cells_of_added_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    words = (grid, "--add", "CNP", "--dry-run", "--results", tmp_path / "results")
    assert "cnp: 4 cells (2 train 2 evaluate)" in run(*words, capsys=capsys)[1]
    records = json.loads(run(*words, "--json", capsys=capsys)[1])
    assert records["total"]["added"] == {"cnp": {"train": 2, "evaluate": 2}}
    finished_plan = replace(make_plan(grid_cells([str(grid)], ["cnp"]), CellStore(tmp_path / "results")), todo=())
    print_dry_run(finished_plan, CellStore(tmp_path / "results"), "cpu", None, 1, added_backbones=["cnp"])
    assert "cnp: nothing" in capsys.readouterr().out


def test_missing_packed_results_are_reported_for_grids_that_ship_with_them(tmp_path: Path) -> None:
    cells = grid_cells([str(tiny_grid(tmp_path))])
    note = pack.missing_results_note(["Reference"], cells, tmp_path)
    assert note is not None and str(tmp_path) in note and "--results" in note
    assert pack.missing_results_note([str(tmp_path / "tiny.toml"), "demo"], cells, tmp_path) is None
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "tiny-linear-smoke.cells.parquet").touch()
    assert pack.missing_results_note(["reference"], cells, tmp_path) is None
    packed = {path.parent.name for path in (cards_folder("grids").parent / "results").glob("*/*.cells.parquet")}
    assert packed == set(pack.PACKED_GRIDS)


class ImmediateEngine:
    """An engine from another package that runs every call when it is submitted."""

    def __init__(self, results: Path, settings: EngineSettings, seconds: object, say: object) -> None:
        self.slots = settings.jobs

    def submit(self, fn: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*arguments))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...

    def stop(self, grace: float) -> None: ...


@pytest.mark.slow
def test_an_engine_from_another_package_computes_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [EntryPoint("mine", f"{__name__}:ImmediateEngine", "iclbench.engines")]
    monkeypatch.setattr("iclbench.sweep.engines.entry_points", lambda group: points)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None)
    code, _, err = run(grid, "--engine", "mine", "--results", tmp_path / "r", capsys=capsys)
    assert code == 0, err
    assert run(grid, "--engine", "mine", "--results", tmp_path / "r", capsys=capsys)[0] == 0
    assert not make_plan(grid_cells([str(grid)]), CellStore(tmp_path / "r")).todo
    for option in ("--detach", "--status"):
        code, _, err = run(grid, "--engine", "mine", option, "--results", tmp_path / "r", capsys=capsys)
        assert code == 2 and "'mine'" in err and option in err


def test_the_remaining_time_is_estimated_for_the_device_of_the_sweep(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_devices: list[str] = []

    class RecordingEstimates(Estimates):
        def __init__(self, store: CellStore, device: str = "cpu") -> None:
            used_devices.append(device)
            super().__init__(store, device)

    monkeypatch.setattr("iclbench.cli.sweep_view.Estimates", RecordingEstimates)
    monkeypatch.setattr("iclbench.cli.sweep_run.engine.run", lambda *arguments, **options: {})
    store = CellStore(tmp_path / "results")
    sweep_run.run(Plan((), {}, ()), store, InlineExecutor, Context(store.results, device="cuda"), False, 1)
    assert used_devices == ["cuda"]


def test_packing_counts_the_cells_that_are_not_computed_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid_cells([str(tiny_grid(tmp_path, backbones=("cnp",), evaluate=None, probe=None))])
    results = tmp_path / "results"
    record(results, cells[0], Outcome("failed", "a reason"), Context(results))
    sweep_results.print_packed([], cells, CellStore(results), results / "mine")
    assert "1 cell" in capsys.readouterr().err


def test_verification_counts_the_available_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = grid_cells([str(tiny_grid(tmp_path, backbones=("cnp",), probe=None))])
    baseline_cells = [cell for cell in cells if cell.kind == "evaluate" and cell.baseline]
    for cell in baseline_cells:
        record(tmp_path, cell, Outcome("done"), Context(tmp_path))
    equal = lambda needed, *arguments: verify.VerifiedCell(needed[-1], 1, None, None, (), 0.0)  # noqa: E731
    monkeypatch.setattr(verify, "verify_cells", equal)
    assert sweep_results.print_verified(cells, CellStore(tmp_path), 100, 0, Context(tmp_path))
    assert f"{len(baseline_cells)}/{len(baseline_cells)} " in capsys.readouterr().err


class UntunedModel(GPT2):
    """A model without a learning rate in any table."""


@pytest.mark.slow
def test_models_without_a_tuned_rate_are_listed_with_the_command_that_tunes_them(tmp_path: Path) -> None:
    """The command tunes on the task whose rates apply to all tasks of the grid."""
    model, card = f"{__name__}:UntunedModel", tmp_path / "grid.toml"
    grid = {"summary": "two", "tasks": ["linear", "decision-tree"], "backbones": ["gpt2"], "presets": ["grid"]}
    card.write_text(tomli_w.dumps(grid | {"seeds": [0]}))
    store = CellStore(tmp_path)
    (line,) = untuned_lines(make_plan(grid_cells([str(card)], [model]), store), tmp_path)
    assert f"{model} " in line and f"iclbench tune {model} --preset grid --tasks linear " in line
    assert list(untuned_lines(make_plan(grid_cells([str(card)]), store), tmp_path)) == []
    (tmp_path / "rates").mkdir()
    rates = {"tasks": ["linear", "decision-tree"], "steps": 3000, "seeds": 3, "train": {model: {"lr": 0.01}}}
    (tmp_path / "rates" / "grid.toml").write_text(tomli_w.dumps({"tuned": [rates]}))
    assert list(untuned_lines(make_plan(grid_cells([str(card)], [model]), store), tmp_path)) == []
