"""CPU time and memory of interactive commands before and after a change.

    python benchmarks/commands.py FOLDER --before CHECKOUT            # tens of minutes; writes commands.md
    python benchmarks/commands.py FOLDER --before CHECKOUT --only show doctor   # some rows, no file

The script creates a results folder of 10,000 runs in `FOLDER` (one smoke run under 10,000 names and seeds) and a grid
of 5,000 training runs, and reuses both in later calls. Every command runs in a separate process, alternately from this
checkout and from `CHECKOUT`, a checkout of an earlier commit. The measure is user CPU seconds, the minimum over
repeats, which depends less on other work on the machine than wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tomli_w

from iclbench import tables
from iclbench.config.cards import read_toml

ROOT = Path(__file__).resolve().parents[1]
RUNS, SEEDS = 10_000, 1000
BACKBONES = ("gpt2", "mamba", "s4d", "cnp", "tnp")
PRINT_VALUES = "import sys, iclbench as icl; print(len(icl.open_results(sys.argv[1]).values()))"


class Command(NamedTuple):
    """A command, its label, and the goal for its user CPU seconds."""

    name: str
    arguments: list[str]
    goal: float
    repeats: int = 1


class Used(NamedTuple):
    """User CPU seconds, and peak resident memory in MB."""

    seconds: float
    megabytes: float


def commands(folder: Path) -> list[Command]:
    """Return the measured commands."""
    results, module = str(folder / "many"), ["-m", "iclbench"]
    dry_run = [*module, "sweep", str(folder / "grid.toml"), "--dry-run", "--results", str(folder / "none")]
    report = [*module, "report", "--results", "results/reference", "--out", str(folder / "report")]
    return [
        Command("show linear", [*module, "show", "linear"], 1, 3),
        Command("doctor", [*module, "doctor"], 1.5, 3),
        Command(f"list runs ({RUNS:,} runs)", [*module, "list", "runs", "--results", results], 3),
        Command(f"open_results(...).values() ({RUNS:,} runs)", ["-c", PRINT_VALUES, results], 6),
        Command(f"sweep --dry-run ({SEEDS * len(BACKBONES):,} training runs)", dry_run, 6),
        Command("report of the reference", report, 20),
    ]


def measure_command(command: Command, checkout: Path) -> Used:
    """Measure a command in a new process, with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command.arguments], cwd=checkout, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command.name} failed in {checkout}")
    return Used(usage.ru_utime, usage.ru_maxrss / 1000)


def least(command: Command, checkout: Path) -> Used:
    """Return the minimum cost of a command over the repeats."""
    return min(measure_command(command, checkout) for _ in range(command.repeats))


def write_grid(folder: Path) -> None:
    """Write a grid with 5,000 training runs and their evaluations."""
    grid = {
        "summary": "5,000 training runs",
        "tasks": ["linear"],
        "backbones": list(BACKBONES),
        "presets": ["smoke"],
        "seeds": list(range(SEEDS)),
        "evaluate": {},
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(grid))


def write_runs(folder: Path) -> None:
    """Write a results folder of many runs, each with a configuration, tables and small weights."""
    if (folder / "many").is_dir():
        return
    train = [sys.executable, "-m", "iclbench", "train", "linear", "gpt2", "--preset", "smoke"]
    subprocess.run([*train, "--results", str(folder / "one")], check=True, cwd=ROOT)
    half = folder / "many.part"
    shutil.rmtree(half, ignore_errors=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(copy_run, folder / "one/runs/linear-gpt2-smoke-s0", half), range(RUNS), chunksize=100))
    half.rename(folder / "many")


def copy_run(run: Path, results: Path, seed: int) -> None:
    """Copy a run with another seed."""
    copy = results / "runs" / f"linear-gpt2-smoke-s{seed}"
    copy.mkdir(parents=True)
    (copy / "config.toml").write_text(tomli_w.dumps({**read_toml(run / "config.toml"), "seed": seed}))
    (copy / "model.safetensors").write_bytes(b"weights")
    for table in ("values", "costs"):
        rows = tables.read(table, run / f"{table}.parquet").assign(run=copy.name)
        about = {k: v for k, v in tables.metadata(run / f"{table}.parquet").items() if k not in ("table", "schema")}
        tables.write(table, rows.assign(seed=seed) if table == "values" else rows, copy / f"{table}.parquet", about)


def row(command: Command, before: Path | None) -> str:
    """Return the row of a command in the table."""
    checkouts = ([] if before is None else [before]) + [ROOT]
    measured = [least(command, checkout) for checkout in checkouts]
    cells = ["-"] * (2 - len(measured)) + [f"{use.seconds:.1f} s, {use.megabytes:.0f} MB" for use in measured]
    return f"| {command.name} | {' | '.join(cells)} | {command.goal:g} s |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout at an earlier commit")
    parser.add_argument("--only", nargs="*", default=[], help="prefixes of the measured commands; no file is written")
    arguments = parser.parse_args()
    folder, before = arguments.folder.resolve(), arguments.before and arguments.before.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_grid(folder)
    write_runs(folder)
    head = "| command | before | after | goal |\n| --- | --- | --- | --- |"
    print(head, flush=True)
    lines = []
    for command in commands(folder):
        if not arguments.only or command.name.startswith(tuple(arguments.only)):
            lines.append(row(command, before))
            print(lines[-1], flush=True)
    if arguments.only:
        return 0
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    text = f"""# Interactive commands

`python benchmarks/commands.py FOLDER --before CHECKOUT`, {date.today()}, {platform.machine()}, {os.cpu_count()} \
logical cores, Python {platform.python_version()}, load averages at the end {load}. User CPU seconds (s) and the \
largest resident memory (MB) of a process; the first two rows are the minimum of three.

{head}
""" + "\n".join(lines)
    Path(__file__).with_suffix(".md").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
