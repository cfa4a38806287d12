"""A sweep that is killed at any moment and repeated gives the same tables."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.core.context import Context
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import work
from tests.conftest import restore_ctrl_c
from tests.forked import Command
from tests.sweep.conftest import tiny_grid

SECONDS = 300.0  # time limit of each step


def start(grid: Path, results: Path, n_workers: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "iclbench", "sweep", str(grid), "--workers", str(n_workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--results", str(results)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=restore_ctrl_c,
    )


def start_forked(grid: Path, results: Path, n_workers: int) -> Command:
    """Start the sweep in a forked process that has already imported torch. The workers import torch themselves."""
    command = ["sweep", str(grid), "--workers", str(n_workers), "--results", str(results)]
    return Command(command, results.with_suffix(".errors"))


def finish_sweep(grid: Path, results: Path) -> None:
    process = start(grid, results)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err


def workers(parent: int) -> list[int]:
    """Return the process ids of the workers of a sweep, without its resource tracker."""
    try:
        children = [int(pid) for task in Path(f"/proc/{parent}/task").iterdir() for pid in _words(task / "children")]
    except FileNotFoundError:
        return []
    return [pid for pid in children if "--multiprocessing-fork" in _words(Path(f"/proc/{pid}/cmdline"))]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().replace("\0", " ").split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def compute_here(grid: Path, results: Path) -> None:
    """Compute the remaining cells in this process, without an engine or workers."""
    for cell in make_plan(grid_cells([str(grid)]), CellStore(results)).todo:
        outcome = work(cell, Context(results))
        assert outcome.status in ("done", "skipped"), outcome


def value_tables(results: Path) -> dict[str, bytes]:
    return {str(path.relative_to(results)): path.read_bytes() for path in tables.files("values", results)}


def row_files(results: Path) -> list[Path]:
    return list((results / "cells").rglob("*.cells.parquet"))


@pytest.mark.slow
def test_a_killed_sweep_that_is_repeated_gives_the_same_tables(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    compute_here(grid, tmp_path / "complete")
    killed = tmp_path / "killed"
    sweep = start_forked(grid, killed, 1)
    wait_until(lambda: len(row_files(killed)) >= 3 or sweep.code is not None)
    pids = workers(sweep.pid)
    sweep.kill()
    assert sweep.code == -signal.SIGKILL and len(pids) == 1, sweep.errors
    wait_until(lambda: not any(map(is_alive, pids)))
    assert 0 < len(make_plan(grid_cells([str(grid)]), CellStore(killed)).todo) < len(row_files(tmp_path / "complete"))
    compute_here(grid, killed)
    assert value_tables(killed) == value_tables(tmp_path / "complete")


# Slow, because six processes import torch.
@pytest.mark.slow
def test_a_sweep_repeated_after_its_workers_and_parent_are_killed_gives_the_same_tables(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",))
    compute_here(grid, tmp_path / "complete")
    killed = tmp_path / "killed"
    sweep = start(grid, killed)
    wait_until(lambda: len(row_files(killed)) >= 3)
    os.kill(workers(sweep.pid)[0], signal.SIGKILL)
    before = len(row_files(killed))
    wait_until(lambda: sweep.poll() is not None or len(row_files(killed)) >= before + 2)  # the other worker continues
    pids = workers(sweep.pid)
    sweep.kill()
    sweep.communicate(timeout=SECONDS)
    wait_until(lambda: not any(map(is_alive, pids)))
    finish_sweep(grid, killed)
    assert value_tables(killed) == value_tables(tmp_path / "complete")
    assert {cell.hash for cell in make_plan(grid_cells([str(grid)]), CellStore(killed)).todo} == set()


# Slow, because the workers import torch.
@pytest.mark.slow
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_writes_checkpoints_and_counts_unfinished_cells(tmp_path: Path, number: int) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), steps=100_000, evaluate=None, probe=None)
    sweep = start_forked(grid, tmp_path / "results", number)
    checkpoints = tmp_path / "results" / "runs"
    try:
        wait_until(lambda: _count_runs_with_checkpoints(checkpoints) == number or sweep.code is not None)
        pids = workers(sweep.pid)
        assert len(pids) == number, sweep.errors
        for pid in pids:  # a terminal sends SIGINT to all processes
            os.kill(pid, signal.SIGINT)
        code = sweep.interrupt(within=SECONDS)
    finally:
        sweep.kill()  # workers end with their sweep
    assert code == 130, sweep.errors
    assert "2" in sweep.errors.splitlines()[-1]
    assert not any(map(is_alive, pids))
    assert _count_runs_with_checkpoints(checkpoints) == len(list(checkpoints.iterdir())) == number
    assert not row_files(tmp_path / "results"), "an interrupted cell has no row"


def _count_runs_with_checkpoints(runs: Path) -> int:
    return sum(any(run.glob("checkpoints/step-*.safetensors")) for run in runs.glob("*"))


# Slow, because the sweep imports torch.
@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_during_the_import_of_torch_ends_the_sweep_without_a_traceback(
    grid: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """An exception during this import would abort the process."""
    sweep = start(grid, tmp_path / "results")
    wait_until(lambda: "libtorch" in Path(f"/proc/{sweep.pid}/maps").read_text())
    sweep.send_signal(number)
    _, err = sweep.communicate(timeout=SECONDS)
    assert sweep.returncode == 130
    assert err and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_a_sweep_killed_ten_times_at_random_moments_gives_the_same_tables(tmp_path: Path, seed: int) -> None:
    """Five workers and five parents are killed in random order."""
    grid = tiny_grid(tmp_path, steps=200)
    start_time = time.monotonic()
    finish_sweep(grid, tmp_path / "complete")
    duration, generator = time.monotonic() - start_time, random.Random(seed)
    victims = ["worker", "parent"] * 5
    generator.shuffle(victims)
    folder = 0
    while victims:
        results = tmp_path / f"killed-{folder}"
        folder += 1
        sweep = None
        while victims:
            sweep = sweep or start(grid, results)
            time.sleep(generator.uniform(0.1, 0.6) * duration)
            pids = workers(sweep.pid)
            if sweep.poll() is not None:
                break
            if victims[-1] == "worker" and not pids:
                continue
            victim = generator.choice(pids) if victims.pop() == "worker" else sweep.pid
            os.kill(victim, signal.SIGKILL)
            if victim == sweep.pid:
                sweep.communicate(timeout=SECONDS)
                wait_until(lambda pids=pids: not any(map(is_alive, pids)))
                sweep = None
        if sweep is not None:
            sweep.communicate(timeout=SECONDS)
        finish_sweep(grid, results)
        assert value_tables(results) == value_tables(tmp_path / "complete")
