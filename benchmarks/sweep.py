"""A smoke grid of 24 cells on two workers against one, in one run.

    python benchmarks/sweep.py           # some minutes; writes sweep.md, exits with 1 below the promise
    python benchmarks/sweep.py --dry     # a try, no file

Eleven trainings and their evaluations, a baseline and the summary, by `iclbench sweep` itself: the ratio includes the
start of the workers, the engine, and the last cells, while which one worker may have nothing to do. Wall-clock seconds,
since these are what a user waits for, on a machine that has two free cores; the best of three, one and two workers in
turn.
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

from iclbench.sweep.cells import grid_cells

PROMISED = 1.7
CELLS = 24


def write_grid(folder: Path, steps: int) -> Path:
    """Eleven runs, each trained for some seconds and evaluated."""
    card = {
        "family": "linear", "summary": "linear functions", "baselines": ["zero"], "oracles": [],
        "presets": {
            "smoke": {
                "points": 20, "episodes": 64, "parameters": {"dim": 5},
                "train": {"steps": steps, "batch": 32, "lr": 1e-3, "checkpoint_every": steps},
                "backbones": {"gpt2": {"layers": 3, "width": 32, "heads": 2}},
            }
        },
    }  # fmt: skip
    (folder / "task.toml").write_text(tomli_w.dumps(card))
    grid = {
        "summary": "24 cells", "tasks": [str(folder / "task.toml")], "backbones": ["gpt2"], "presets": ["smoke"],
        "seeds": list(range(11)), "evaluate": {},
    }  # fmt: skip
    (folder / "grid.toml").write_text(tomli_w.dumps(grid))
    return folder / "grid.toml"


def seconds(grid: Path, workers: int) -> float:
    """Wall-clock seconds of a whole sweep into an empty folder."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "iclbench", "sweep", str(grid), "--results", results]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--workers", str(workers)], check=True, capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return time.perf_counter() - started


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
        taken: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(arguments.repeats):
            for workers, found in taken.items():
                found.append(seconds(grid, workers))
                print(f"{workers} workers: {found[-1]:.1f} s", flush=True)
    one, two = min(taken[1]), min(taken[2])
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    text = f"""# A sweep on two workers against one

`python benchmarks/sweep.py`, {date.today()}, {platform.machine()}, {os.cpu_count()} logical cores, torch \
{torch.__version__}, load averages at the end {load}. {CELLS} cells: 11 trainings of GPT-2 ({arguments.steps} steps), \
their evaluations, a baseline, the summary.

| workers | seconds, each of {arguments.repeats} | best |
| --- | --- | --- |
| 1 | {", ".join(f"{value:.1f}" for value in taken[1])} | {one:.1f} |
| 2 | {", ".join(f"{value:.1f}" for value in taken[2])} | {two:.1f} |

{one / two:.2f} times as fast (promised: at least {PROMISED}).
"""
    print(text)
    if not arguments.dry:
        Path(__file__).with_suffix(".md").write_text(text)
    return int(one / two < PROMISED)


if __name__ == "__main__":
    sys.exit(main())
