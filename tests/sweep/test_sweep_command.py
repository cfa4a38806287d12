"""`iclbench sweep` as it is typed."""

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
from iclbench.cli.sweep_jobs import cluster
from iclbench.cli.sweep_run import devices
from iclbench.cli.sweep_summary import print_dry_run, print_outcomes, untuned_lines
from iclbench.cli.sweep_view import label, view
from iclbench.config.cards import cards_folder
from iclbench.core.context import Context
from iclbench.store.cells import Store, record
from iclbench.store.outcome import Outcome
from iclbench.sweep import pack, verify
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.plan import Plan, plan
from tests.inline_executor import InlineExecutor
from tests.sweep.conftest import tiny_grid


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["sweep", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["refrence"], "did you mean 'reference'"),
        (["./nowhere.toml"], "cannot read nowhere.toml"),
        (["deep-thinking-3", "--pack", "mine"], "'deep-thinking-3'"),
        (["deep-thinking-3", "--verify", "1"], "'deep-thinking-3'"),
        (["GRID", "--only", "trian"], "did you mean 'train'"),
        (["GRID", "--preset", "smok"], "did you mean 'smoke'"),
        (["GRID", "--tasks", "tiny-linear,quadratic"], "unknown task 'quadratic'; did you mean 'tiny-quadratic'"),
        (["GRID", "--contestants", "gpt3"], "unknown contestant 'gpt3'; did you mean 'gpt2'"),
        (["GRID", "--verify", "1", "--contestants", "gpt2"], "--contestants"),
        (["GRID", "--verify", "1", "--engine", "slurm"], "--engine"),
        (["GRID", "--pack", "mine", "--jobs", "2"], "--jobs"),
        (["GRID", "--pack", "mine", "--detach"], "--detach"),
        (["GRID", "--pack", "mine", "--status"], "--status"),
        (["GRID", "--pack", "mine", "--per-gpu", "2"], "--per-gpu, --engine"),
        (["GRID", "--workers", "0"], "--workers"),
        (["GRID", "--device", "tpu"], "is not a device"),
        (["GRID", "--pack", "mine", "--verify", "1"], "--pack and --verify"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [str(grid) if word == "GRID" else word for word in arguments]
    code, out, err = run(*typed, "--results", tmp_path / "results", capsys=capsys)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_nothing_to_pack_and_nowhere_to_sweep_to_are_one_line_and_exit_code_2(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "results", tmp_path / "file"
    file.touch()
    for arguments, message in (
        (["--results", folder, "--pack", folder / "mine"], f"{folder}"),
        (["--results", file], f"results folder {file}: there is a file where a folder has to be; choose another"),
    ):
        code, out, err = run(grid, *arguments, capsys=capsys)
        assert (code, out) == (2, "")
        assert message in err and err.count("\n") == 1
    assert not folder.exists()


def test_what_only_some_kinds_leave_waiting_is_said(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two evaluations and a summary of each of two tasks wait for trainings; baselines do not."""
    asked = [grid, "--only", "evaluate", "--results", tmp_path / "results"]
    code, out, _ = run(*asked, "--dry-run", capsys=capsys)
    assert code == 0 and "6 cells skipped" in out
    todo = next(line for line in out.splitlines() if line.split()[:1] == ["all"])
    assert "8 evaluate" in todo


def test_some_tasks_and_contestants_are_what_is_asked_for(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training, its evaluation and its probe, and the summary of those that are evaluated."""
    asked = [grid, "--tasks", "tiny_linear", "--contestants", "gpt2", "--results", tmp_path / "results", "--dry-run"]
    code, out, _ = run(*asked, "--json", capsys=capsys)
    found = json.loads(out)
    assert code == 0 and [task["task"] for task in found["tasks"]] == ["tiny-linear"]
    assert found["total"]["to_do"] == {"train": 1, "evaluate": 2, "probe": 1}
    code, out, _ = run(*asked, "--contestants", "gpt2,least-squares", "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["total"]["to_do"]["evaluate"] == 3


@pytest.mark.slow
def test_the_summary_covers_the_contestants_that_are_evaluated(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command has nothing to do afterwards; another contestant is summed up together with the first ones."""
    results = tmp_path / "results"
    asked = [grid, "--tasks", "tiny-linear", "--results", results, "--workers", "1"]

    def scored() -> set[str]:
        values = tables.read_all("values", results)
        return set(values.loc[values["metric"].eq("score"), "contestant"])

    for contestants, expected in (("zero,least-squares", {"zero", "least-squares"}), ("knn-3", {"knn-3"})):
        assert run(*asked, "--contestants", contestants, capsys=capsys)[0] == 0
        assert scored() >= expected
        _, out, _ = run(*asked[:-2], "--contestants", contestants, "--dry-run", capsys=capsys)
        assert out.splitlines()[-1] == "nothing to do"
    assert scored() == {"zero", "least-squares", "knn-3"}
    _, out, _ = run(*asked[:-2], "--dry-run", "--json", capsys=capsys)
    assert json.loads(out)["total"]["to_do"]["evaluate"] >= 2  # of the trained model, and the summary of all


@pytest.mark.slow
def test_of_what_is_done_no_time_is_told(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [grid, "--contestants", "least-squares", "--results", tmp_path / "results"]
    heads = []
    for more in (["--dry-run"], ["--workers", "1"], ["--dry-run"]):
        code, out, _ = run(*asked, *more, capsys=capsys)
        heads.append(out.splitlines()[0].split())
        assert code == 0
    assert "time" in heads[0] and not {"work", "time", "disk"} & {*heads[2]}
    assert out.splitlines()[-1] == "nothing to do"


def test_what_workers_warn_of_is_told_above_the_table(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = grid_cells([str(grid)])
    store = Store(tmp_path / "results")
    with view(plan(cells, store), store, 1) as watched:
        watched.started(cells[0])
        watched.finished(cells[0], Outcome("done", warnings=("at 9 points left out",)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"WARNING: {label(cells[0])}: at 9 points left out"


def test_a_closed_stdout_is_no_bug(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `iclbench sweep GRID --dry-run >&-`, where Python has no such stream."""
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["sweep", str(grid), "--dry-run", "--results", str(tmp_path / "results")]) == 0
    assert "bug" not in capsys.readouterr().err


# Slow: a process that imports torch.
@pytest.mark.slow
def test_a_stdout_that_a_shell_has_closed_is_no_bug(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None)
    command = f"{sys.executable} -m iclbench sweep {grid} --dry-run --results {tmp_path / 'results'} >&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "bug" not in done.stderr, done.stderr


def test_a_dry_run_counts_cells_and_touches_nothing(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two trainings, their evaluations and probes, four baselines and a summary, for each of two tasks."""
    results = tmp_path / "results"
    code, out, err = run(grid, "--dry-run", "--json", "--results", results, capsys=capsys)
    assert code == 0, err
    found = json.loads(out)
    assert found["total"]["to_do"] == {"train": 4, "evaluate": 14, "probe": 4}
    assert [line["task"] for line in found["tasks"]] == ["tiny-linear", "tiny-quadratic"]
    for line in found["tasks"]:
        assert line["seconds"] > 0, "steps of trainings are measured"
        assert line["unknown"] == {"evaluate": 7, "probe": 2}, "and nothing is made up for the rest"
    assert not results.exists()


def test_a_dry_run_of_an_engine_says_its_jobs(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iclbench.sweep.engines.find_spec", lambda name: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = (grid, "--dry-run", "--engine", "slurm", "--jobs", "1", "--results", tmp_path / "results")
    code, out, err = run(*asked, "--json", capsys=capsys)
    assert code == 0, err
    found = json.loads(out)
    jobs = found["total"]["jobs"]
    assert (jobs["cpus"], jobs["memory"], jobs["at_once"]) == (1, "4G", 1)
    assert jobs["cells_of_unknown_length"] == 18 and jobs["cells_per_job"][0] >= 1
    spans = {each["at_once"]: each for each in jobs["makespan"]}
    assert list(spans) == [1, 8, 32, 128, 512]
    assert spans[8]["seconds"] < spans[1]["seconds"] <= spans[1]["seconds_with_deaths"]
    # Trainings as they are measured now, other cells of a minute each, and ten seconds to start a job.
    known = sum(line["seconds"] for line in found["tasks"])
    assert spans[1]["seconds"] == pytest.approx(known + 18 * 60 + 10 * jobs["jobs"])
    code, out, err = run(*asked, capsys=capsys)
    assert code == 0, err
    assert "18 cells" in out and "time if 5% die" in out
    # Their GPUs are elsewhere: nothing is measured here.
    code, out, err = run(*asked, "--device", "cuda", "--json", capsys=capsys)
    assert code == 0, err
    jobs = json.loads(out)["total"]["jobs"]
    assert jobs["gpus"] == 1 and jobs["cells_of_unknown_length"] == 22


def test_grids_that_ask_for_different_jobs_are_not_swept_together(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iclbench.sweep.engines.find_spec", lambda name: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = ("--dry-run", "--json", "--engine", "slurm", "--results", tmp_path / "results")
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text(grid.read_text() + '\n[engine]\ncpus = 4\nmemory = "9G"\n')
    small.write_text(grid.read_text() + '\n[engine]\ncpus = 4\nmemory = "2G"\n')
    code, _, err = run(large, small, *asked, capsys=capsys)
    said = (
        f"the tables [engine] of grids '{large}' and '{small}' have memory = 9G and 2G; sweep them one after the other"
    )
    assert code == 2 and said in " ".join(err.split())
    small.write_text(grid.read_text() + "\n[engine]\ncpus = 4\n")
    both = cluster("slurm", [str(large), str(grid), str(small)], None, None, False, False)
    assert both is not None and (both.settings.cpus, both.settings.memory) == (4, "9G")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--engine", "slurm", "--detach", "--status"], "--status and --detach"),
        (["--engine", "slurm", "--detach", "--dry-run"], "--dry-run"),
        (["--engine", "slurm", "--per-gpu", "2"], "--per-gpu"),
        (["--engine", "slurm", "--status"], "results folder"),
    ],
)
def test_options_of_engines_that_do_not_go_together(
    options: list[str],
    line: str,
    grid: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("iclbench.sweep.engines.find_spec", lambda name: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, _, err = run(grid, *options, "--results", tmp_path / "results", capsys=capsys)
    assert code == 2 and line in err and not (tmp_path / "results").exists()


def test_recorded_seconds_parameters_and_sizes_make_the_estimate(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of two trainings has run at 0.5 s a step; the second seed is to do, four steps of it, on two workers."""
    from iclbench import tables
    from iclbench.cli.sweep_view import duration

    card = tiny_grid(tmp_path, backbones=("gpt2",), seeds=[0, 1], evaluate=None, probe=None)
    results = tmp_path / "results"
    cells = grid_cells([str(card)])
    common = {"task": "tiny-linear", "contestant": "gpt2", "preset": "smoke", "device": "cpu", "threads": 1}
    shared = {**common, "version": "0", "run": "tiny-linear-gpt2-smoke-s0"}
    written = [
        {**shared, "phase": "model", "metric": "parameters", "value": 1000.0},
        {**shared, "phase": "train_step", "metric": "seconds", "value": 0.5},
        {**shared, "phase": "train_step", "metric": "seconds", "value": 99.0, "n_points": 8},  # of another measurement
    ]
    path = results / "runs" / "tiny-linear-gpt2-smoke-s0" / "costs.parquet"
    tables.write("costs", written, path, {})
    first = next(cell for cell in cells if cell.task == "tiny-linear" and cell.seed == 0)
    Store(results).record(first, Outcome("done", None, (str(path.relative_to(results)),), 2.0), Context(results))
    code, out, err = run(card, "--dry-run", "--json", "--workers", "2", "--results", results, capsys=capsys)
    assert code == 0, err
    linear = json.loads(out)["tasks"][0]
    assert linear["cells"]["train"] == {"done": 1, "to do": 1} and linear["to_do"] == {"train": 1}
    assert linear["seconds"] == pytest.approx(4 * 0.5)
    assert linear["parameters"] == [1000, 1000]
    assert linear["bytes"] == 1000 * (4 + 2 * 12), "weights, and two checkpoints with Adam's two moments"
    assert [duration(s) for s in (4.2, 250.0, 7300.0, 200_000.0)] == ["4 s", "4 min", "2 h 1 min", "2 d 7 h"]


@pytest.mark.slow
def test_a_sweep_ends_with_a_table_and_the_next_one_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second task cannot be trained: a file lies where the folder of its run has to be."""
    # A worker would have to import torch; there is one in `test_kill.py`.
    monkeypatch.setattr("iclbench.cli.sweep_run.pool", lambda slots, threads: InlineExecutor())
    grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    quadratic = tmp_path / "tiny-quadratic.toml"
    results = tmp_path / "results"
    (results / "runs").mkdir(parents=True)
    (results / "runs" / "tiny-quadratic-gpt2-smoke-s0").touch()
    code, out, err = run(grid, "--workers", "1", "--results", results, capsys=capsys)
    assert code == 1, err
    assert "train tiny-quadratic-gpt2-smoke-s0" in out and "a file where a folder" in out
    assert "its training failed (run 'tiny-quadratic-gpt2-smoke-s0')" in out.replace("\n", " ")
    assert "2 cells failed; the same command tries them again" in err
    left = plan(grid_cells([str(grid)]), Store(results)).todo
    assert {cell.run for cell in left if cell.kind == "train"} == {"tiny-quadratic-gpt2-smoke-s0"}
    assert {cell.task for cell in left} == {"tiny-quadratic"}, "the other task is done"
    only = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    quadratic.unlink()
    only.write_text(only.read_text().replace(f'    "{quadratic}",\n', ""))
    code, out, err = run(only, "--results", results, capsys=capsys)
    assert (code, err) == (0, ""), "nothing starts"
    assert out.splitlines()[-1].split() == ["all", "7"]


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
def test_every_visible_gpu_is_one_that_workers_may_see(
    typed: str, visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine with two GPUs would have it; names are those that `CUDA_VISIBLE_DEVICES` takes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    kind, gpus = devices(typed)
    assert (kind, gpus) == ("cuda" if expected else "cpu", expected)


def test_what_diverged_is_told_once_and_has_a_column_from_then_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), evaluate=None, probe=None)
    cells = grid_cells([str(grid)])
    results = Store(tmp_path / "results")
    before = plan(cells, results)
    print_outcomes(before, {})
    assert "diverged" not in capsys.readouterr().out
    outcome = Outcome("diverged", "diverged at step 3: the loss is nan")
    record(results.results, cells[0], outcome, Context(results.results))
    after = plan(cells, Store(results.results))
    assert print_outcomes(after, {cells[0].hash: outcome}) == 0, "an end, not a failure"
    out = capsys.readouterr().out
    assert "diverged: train tiny-linear-gpt2-smoke-s0: diverged at step 3: the loss is nan; it is not" in out
    print_dry_run(after, results, "cpu", None, 1)
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert "diverged" in header.split() and first.split()[:3] == ["tiny-linear", "smoke", "1"]


def test_a_dry_run_says_how_much_is_for_who_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    asked = (grid, "--add", "CNP", "--dry-run", "--results", tmp_path / "results")
    assert "for cnp: 4 cells (2 train 2 evaluate)" in run(*asked, capsys=capsys)[1]
    found = json.loads(run(*asked, "--json", capsys=capsys)[1])
    assert found["total"]["added"] == {"cnp": {"train": 2, "evaluate": 2}}
    done = plan(grid_cells([str(grid)], ["cnp"]), Store(tmp_path / "results"))
    print_dry_run(replace(done, todo=()), Store(tmp_path / "results"), "cpu", None, 1, added=["cnp"])
    assert "for cnp: nothing" in capsys.readouterr().out


def test_packed_results_that_are_not_where_a_sweep_looks_are_told(tmp_path: Path) -> None:
    """Only for shipped grids that have any."""
    cells = grid_cells([str(tiny_grid(tmp_path))])
    line = pack.missing(["Reference"], cells, tmp_path)
    assert line is not None and f"{tmp_path}" in line and "--results" in line
    assert pack.missing([str(tmp_path / "tiny.toml"), "demo"], cells, tmp_path) is None
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "tiny-linear-smoke.cells.parquet").touch()
    assert pack.missing(["reference"], cells, tmp_path) is None
    packed = {path.parent.name for path in (cards_folder("grids").parent / "results").glob("*/*.cells.parquet")}
    assert packed == set(pack.PACKED)


class Inline:
    """An engine of another package: every call is done when it is submitted."""

    def __init__(self, results: Path, settings: EngineSettings, seconds: object, say: object) -> None:
        self.slots = settings.jobs

    def submit(self, fn: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*arguments))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...

    def stop(self, grace: float) -> None: ...


@pytest.mark.slow
def test_an_engine_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [EntryPoint("mine", f"{__name__}:Inline", "iclbench.engines")]
    monkeypatch.setattr("iclbench.sweep.engines.entry_points", lambda group: points)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    grid = tiny_grid(tmp_path, backbones=("cnp",), probe=None)
    code, _, err = run(grid, "--engine", "mine", "--results", tmp_path / "r", capsys=capsys)
    assert code == 0, err
    assert run(grid, "--engine", "mine", "--results", tmp_path / "r", capsys=capsys)[0] == 0
    assert not plan(grid_cells([str(grid)]), Store(tmp_path / "r")).todo
    for option, line in (("--detach", "'mine'"), ("--status", "'mine'")):
        code, _, err = run(grid, "--engine", "mine", option, "--results", tmp_path / "r", capsys=capsys)
        assert code == 2 and line in err


def test_the_time_that_is_left_is_that_of_the_device_that_is_swept_on(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    class Noted(Estimates):
        def __init__(self, store: Store, device: str = "cpu") -> None:
            found.append(device)
            super().__init__(store, device)

    monkeypatch.setattr("iclbench.cli.sweep_view.Estimates", Noted)
    monkeypatch.setattr("iclbench.cli.sweep_run.engine.run", lambda *arguments, **more: {})
    store = Store(tmp_path / "results")
    sweep_run.run(Plan((), {}, ()), store, InlineExecutor, Context(store.results, device="cuda"), False, 1)
    assert found == ["cuda"]


def test_packing_says_how_many_cells_are_not_computed_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid_cells([str(tiny_grid(tmp_path, backbones=("cnp",), evaluate=None, probe=None))])
    results = tmp_path / "results"
    record(results, cells[0], Outcome("failed", "no luck"), Context(results))
    sweep_results.print_packed(cells, Store(results), results / "mine")
    assert "1 cell not computed yet" in capsys.readouterr().err


def test_cells_that_are_computed_again_are_counted_as_many_as_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = grid_cells([str(tiny_grid(tmp_path, backbones=("cnp",), probe=None))])
    zero = [cell for cell in cells if cell.kind == "evaluate" and cell.baseline]
    for cell in zero:
        record(tmp_path, cell, Outcome("done"), Context(tmp_path))
    monkeypatch.setattr(verify, "_verified", lambda needed, *more: verify.Verified(needed[-1], 1, None, None, (), 0.0))
    assert sweep_results.print_verified(cells, Store(tmp_path), 100, 0, Context(tmp_path))
    assert f"{len(zero)}/{len(zero)} " in capsys.readouterr().err


class Untuned(GPT2):
    """A model without a rate in any table."""


@pytest.mark.slow
def test_models_without_a_tuned_rate_are_named_with_the_command_that_tunes_them(tmp_path: Path) -> None:
    """The command names the tasks whose rates hold for those of the grid."""
    model, card = f"{__name__}:Untuned", tmp_path / "grid.toml"
    grid = {"summary": "two", "tasks": ["linear", "decision-tree"], "backbones": ["gpt2"], "presets": ["grid"]}
    card.write_text(tomli_w.dumps(grid | {"seeds": [0]}))
    store = Store(tmp_path)
    (line,) = untuned_lines(plan(grid_cells([str(card)], [model]), store), tmp_path)
    assert f"{model} " in line and f"iclbench tune {model} --preset grid --tasks linear " in line
    assert list(untuned_lines(plan(grid_cells([str(card)]), store), tmp_path)) == []
    (tmp_path / "rates").mkdir()
    own = {"tasks": ["linear", "decision-tree"], "steps": 3000, "seeds": 3, "train": {model: {"lr": 0.01}}}
    (tmp_path / "rates" / "grid.toml").write_text(tomli_w.dumps({"tuned": [own]}))
    assert list(untuned_lines(plan(grid_cells([str(card)], [model]), store), tmp_path)) == []
