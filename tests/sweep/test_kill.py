"""SIGKILL at any moment of a sweep, of workers and of the parent: the same command ends with the same bytes."""

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
from iclbench.store.cells import Store
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.plan import plan
from iclbench.sweep.work import work
from tests.conftest import heed_ctrl_c
from tests.forked import Command
from tests.sweep.conftest import tiny_grid

SECONDS = 300.0  # nothing here takes longer


def start(grid: Path, results: Path, number: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "iclbench", "sweep", str(grid), "--workers", str(number)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--results", str(results)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=heed_ctrl_c,
    )


def begun(grid: Path, results: Path, number: int) -> Command:
    """The same in a process that need not import torch; its workers have to."""
    command = ["sweep", str(grid), "--workers", str(number), "--results", str(results)]
    return Command(command, results.with_suffix(".errors"))


def finish(grid: Path, results: Path) -> None:
    process = start(grid, results)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err


def workers(parent: int) -> list[int]:
    """The worker processes of a sweep; its resource tracker is none."""
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


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def undisturbed(grid: Path, results: Path) -> None:
    """Every cell that is to do in its turn, in this process: no engine, no worker."""
    for cell in plan(grid_cells([str(grid)]), Store(results)).todo:
        outcome = work(cell, Context(results))
        assert outcome.status in ("done", "skipped"), outcome


def value_tables(results: Path) -> dict[str, bytes]:
    return {str(path.relative_to(results)): path.read_bytes() for path in tables.files("values", results)}


def rows(results: Path) -> list[Path]:
    return list((results / "cells").rglob("*.cells.parquet"))


@pytest.mark.slow
def test_what_a_killed_sweep_left_is_gone_on_with_and_ends_with_the_same_tables(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), probe=None)
    undisturbed(grid, tmp_path / "whole")
    killed = tmp_path / "killed"
    sweep = begun(grid, killed, 1)
    until(lambda: len(rows(killed)) >= 3 or sweep.code is not None)
    left = workers(sweep.pid)
    sweep.kill()
    assert sweep.code == -signal.SIGKILL and len(left) == 1, sweep.errors
    until(lambda: not any(map(alive, left)))
    assert 0 < len(plan(grid_cells([str(grid)]), Store(killed)).todo) < len(rows(tmp_path / "whole"))
    undisturbed(grid, killed)
    assert value_tables(killed) == value_tables(tmp_path / "whole")


# Slow: six processes, each of which imports torch.
@pytest.mark.slow
def test_sweep_whose_workers_and_parent_are_killed_ends_with_the_same_tables(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",))
    undisturbed(grid, tmp_path / "whole")
    killed = tmp_path / "killed"
    sweep = start(grid, killed)
    until(lambda: len(rows(killed)) >= 3)
    os.kill(workers(sweep.pid)[0], signal.SIGKILL)
    before = len(rows(killed))
    until(lambda: sweep.poll() is not None or len(rows(killed)) >= before + 2)  # the others go on
    left = workers(sweep.pid)
    sweep.kill()
    sweep.communicate(timeout=SECONDS)
    until(lambda: not any(map(alive, left)))
    finish(grid, killed)
    assert value_tables(killed) == value_tables(tmp_path / "whole")
    assert {cell.hash for cell in plan(grid_cells([str(grid)]), Store(killed)).todo} == set()


# Two workers are slow: one more process that imports torch.
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_keeps_the_checkpoint_and_says_how_to_go_on(tmp_path: Path, number: int) -> None:
    grid = tiny_grid(tmp_path, backbones=("gpt2",), steps=100_000, evaluate=None, probe=None)
    sweep = begun(grid, tmp_path / "results", number)
    checkpoints = tmp_path / "results" / "runs"
    try:
        until(lambda: _have_checkpoints(checkpoints) == number or sweep.code is not None)
        at_work = workers(sweep.pid)
        assert len(at_work) == number, sweep.errors
        for pid in at_work:  # as a terminal sends it to all of them
            os.kill(pid, signal.SIGINT)
        code = sweep.interrupted(within=SECONDS)
    finally:
        sweep.kill()  # its workers end with it
    assert code == 130, sweep.errors
    assert "the other 2" in sweep.errors.splitlines()[-1]
    assert not any(map(alive, at_work))
    assert _have_checkpoints(checkpoints) == len(list(checkpoints.iterdir())) == number
    assert not rows(tmp_path / "results"), "an interrupted cell has not failed"


def _have_checkpoints(runs: Path) -> int:
    return sum(any(run.glob("checkpoints/step-*.safetensors")) for run in runs.glob("*"))


# Ctrl-C is slow: both signals have one handler.
@pytest.mark.parametrize("which", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_who_stops_a_sweep_while_it_imports_torch_is_answered_in_one_line(
    grid: Path, tmp_path: Path, which: signal.Signals
) -> None:
    """In the midst of that an exception would abort the process."""
    sweep = start(grid, tmp_path / "results")
    until(lambda: "libtorch" in Path(f"/proc/{sweep.pid}/maps").read_text())
    sweep.send_signal(which)
    _, err = sweep.communicate(timeout=SECONDS)
    assert sweep.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted") and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_ten_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """Five of workers and five of parents, in any order."""
    grid = tiny_grid(tmp_path, steps=200)
    started = time.monotonic()
    finish(grid, tmp_path / "whole")
    whole, dice = time.monotonic() - started, random.Random(seed)
    victims = ["worker", "parent"] * 5
    dice.shuffle(victims)
    folder = 0
    while victims:
        results = tmp_path / f"killed-{folder}"
        folder += 1
        sweep = None
        while victims:
            sweep = sweep or start(grid, results)
            time.sleep(dice.uniform(0.1, 0.6) * whole)
            found = workers(sweep.pid)
            if sweep.poll() is not None:
                break
            if victims[-1] == "worker" and not found:
                continue
            victim = dice.choice(found) if victims.pop() == "worker" else sweep.pid
            os.kill(victim, signal.SIGKILL)
            if victim == sweep.pid:
                sweep.communicate(timeout=SECONDS)
                until(lambda found=found: not any(map(alive, found)))
                sweep = None
        if sweep is not None:
            sweep.communicate(timeout=SECONDS)
        finish(grid, results)
        assert value_tables(results) == value_tables(tmp_path / "whole")
