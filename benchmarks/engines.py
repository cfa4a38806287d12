"""Overhead of engines: 200 cells of one second in jobs of ten on two slots, compared with the local engine.

    SLURM_CONF=... python benchmarks/engines.py slurm        # on a cluster; memory and partition from engines.toml
    python benchmarks/engines.py ray --address HOST:PORT

The measure is wall-clock seconds. The script adds or replaces the engine's row in benchmarks/engines.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import date
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from iclbench.config.resolution import resolve_task
from iclbench.core.context import Context
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep import engine, engines
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engine import Bundling
from iclbench.sweep.executor import Executor
from iclbench.sweep.local import LocalPool
from iclbench.sweep.plan import Plan
from iclbench.sweep.work import set_up

CELLS, WORTH, SLOTS = 200, 10.0, 2
HEAD = """\
# Overhead of engines

`python benchmarks/engines.py ENGINE`: 200 cells of one second in jobs of ten, two jobs at once, wall-clock seconds,
against two processes of the local engine in the same run.

| engine | date | jobs | seconds | local, seconds | times as long |
| --- | --- | --- | --- | --- | --- |
"""


def second(cell: GridCell, context: Context) -> Outcome:
    """Sleep for one second in place of the work of a cell."""
    time.sleep(1.0)
    return Outcome("done")


class Quiet:
    """A console that prints nothing."""

    def on_start(self, cell: GridCell) -> None:
        pass

    def on_finish(self, cell: GridCell, outcome: Outcome) -> None:
        pass

    def on_retry(self, cell: GridCell, reason: str) -> None:
        pass


def took(executor: Executor, results: Path, bundling: Bundling, work: engine.Work) -> float:
    task = resolve_task("linear", "smoke")[0]
    cells = tuple(GridCell("cost", f"r{n}", f"r{n}", task, "smoke", options={"points": [n]}) for n in range(CELLS))
    plan = Plan(cells, {cell.hash: None for cell in cells}, cells)
    began = time.monotonic()
    try:
        done = engine.run(plan, CellStore(results), executor, Context(results), Quiet(), work, bundling)
    finally:
        executor.shutdown()
    assert len(done) == CELLS
    return time.monotonic() - began


def cluster(name: str, results: Path, address: str | None) -> Executor:
    engine_settings = engines.settings(name, {"jobs": SLOTS, "poll": 0.5}, {"address": address} if address else {})
    if name == "slurm":
        from iclbench.sweep.slurm import SlurmExecutor

        return SlurmExecutor(results, engine_settings)
    from iclbench.sweep.ray import RayExecutor

    return RayExecutor(results, engine_settings)


def main(name: str, address: str | None, folder: Path) -> None:
    # Jobs import the function for the work of a cell by the name of its module, which must not be `__main__`.
    root = str(Path(__file__).resolve().parents[1])
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = root
    work = import_module("benchmarks.engines").second
    with TemporaryDirectory(dir=folder) as scratch:
        results = Path(scratch)
        local_seconds = took(LocalPool([(1,)] * SLOTS, set_up), results, engine.SINGLE_CELLS, work)
        engine_seconds = took(cluster(name, results, address), results, Bundling(WORTH, lambda cell: 1.0), work)
    path = Path(__file__).with_suffix(".md")
    old_text = path.read_text() if path.is_file() else HEAD
    table_lines = [line for line in old_text.splitlines() if not line.startswith(f"| {name} |")]
    jobs = round(CELLS / WORTH)
    ratio = engine_seconds / local_seconds
    table_lines.append(
        f"| {name} | {date.today()} | {jobs} | {engine_seconds:.0f} | {local_seconds:.0f} | {ratio:.2f} |"
    )
    path.write_text("\n".join(table_lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["slurm", "ray"])
    parser.add_argument("--address")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder that all nodes share")
    arguments = parser.parse_args()
    main(arguments.engine, arguments.address, arguments.folder)
