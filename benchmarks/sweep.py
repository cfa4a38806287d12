"""A smoke grid of 24 cells with two workers, compared with one worker.

    python benchmarks/sweep.py           # takes a few minutes; writes sweep.md and exits with 1 if the target is missed
    python benchmarks/sweep.py --dry     # a trial that writes no file

`iclbench sweep` computes ten training runs and their evaluations, three baselines and the summary. The ratio includes
the start of workers, the engine, and the last cells, during which a worker may be idle. The measure is wall-clock
seconds on a machine with two free cores: the minimum of three repeats, in which one and two workers alternate.

Two cores share caches, memory and the clock. The slowdown of a training run by a concurrent one, which follows from the
seconds in the records of runs, therefore bounds the ratio for every engine on this machine. The page shows the bound.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import tomli_w
import torch

from iclbench import tables
from iclbench.sweep.cells import grid_cells

PROMISED = 1.7
CELLS, RUNS = 24, 10


def write_grid(folder: Path, steps: int) -> Path:
    """Write a grid of ten runs, each trained for a few seconds and then evaluated."""
    card = {
        "family": "linear",
        "summary": "linear functions",
        "baselines": ["zero", "mean", "averaging"],
        "oracles": [],
        "presets": {
            "smoke": {
                "points": 20,
                "episodes": 64,
                "parameters": {"dim": 5},
                "train": {"steps": steps, "batch": 32, "lr": 1e-3, "checkpoint_every": steps},
                "backbones": {"gpt2": {"layers": 3, "width": 32, "heads": 2}},
            }
        },
    }
    (folder / "task.toml").write_text(tomli_w.dumps(card))
    grid = {
        "summary": "24 cells",
        "tasks": [str(folder / "task.toml")],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": list(range(RUNS)),
        "evaluate": {},
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(grid))
    return folder / "grid.toml"


def seconds(grid: Path, workers: int) -> tuple[float, float]:
    """Return the wall-clock seconds of a sweep into an empty folder, and the mean seconds of its training runs."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "iclbench", "sweep", str(grid), "--results", results]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--workers", str(workers)],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        duration = time.perf_counter() - started
        costs = tables.read_all("costs", Path(results) / "runs")
        training_seconds = costs.loc[costs["phase"].eq("train") & costs["metric"].eq("seconds"), "value"]
        assert len(training_seconds) == RUNS, len(training_seconds)
        return duration, float(training_seconds.mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        grid = write_grid(Path(folder), arguments.steps)
        cells = grid_cells([str(grid)])
        assert len(cells) == CELLS, len(cells)
        by_workers: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(arguments.repeats):
            for workers, durations in by_workers.items():
                durations.append(seconds(grid, workers))
                print(
                    f"{workers} workers: {durations[-1][0]:.1f} s, a training run {durations[-1][1]:.2f} s", flush=True
                )
    one, two = (min(duration for duration, _ in by_workers[workers]) for workers in (1, 2))
    alone_seconds, shared_seconds = (min(training for _, training in by_workers[workers]) for workers in (1, 2))
    slowdown = shared_seconds / alone_seconds
    rows = "\n".join(
        f"| {workers} | {', '.join(f'{duration:.1f}' for duration, _ in durations)} | {min(durations)[0]:.1f} "
        f"| {', '.join(f'{training:.2f}' for _, training in durations)} |"
        for workers, durations in by_workers.items()
    )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    text = f"""# A sweep with two workers, compared with one

`python benchmarks/sweep.py`, {date.today()}, {platform.machine()}, {os.cpu_count()} logical cores, torch \
{torch.__version__}, load averages at the end {load}. {CELLS} cells: {RUNS} training runs of GPT-2 ({arguments.steps} \
steps), their evaluations, three baselines, the summary.

| workers | seconds, each of {arguments.repeats} | best | seconds of a training run |
| --- | --- | --- | --- |
{rows}

{one / two:.2f} times as fast (promised: at least {PROMISED}). A training run takes {slowdown:.2f} times as long \
next to another one, so that no engine could be more than {2 / slowdown:.2f} times as fast on this machine.
"""
    print(text)
    if not arguments.dry:
        Path(__file__).with_suffix(".md").write_text(text)
    return int(one / two < PROMISED)


if __name__ == "__main__":
    sys.exit(main())
