"""What of a grid is there already: rows of the table `cells` and the files that they name.

Every cell leaves a row, `RESULTS/cells/TASK-PRESET/RUN.KIND-HASH.cells.parquet`. It is done as long as every file that
its row names can be opened, so that a file that is deleted makes exactly its cells to do. Reference results hold the
rows of many cells in few files and are read in the same way.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd

from iclbench import __version__, tables
from iclbench.runs import writing
from iclbench.sweep.cells import GridCell
from iclbench.sweep.outcome import Outcome, Place, Status

# Whose versions the values of a cell may depend on.
_LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "xgboost")


class Store:
    """The cells that a results folder knows of.

    Args:
        results: results folder; what it holds is read once.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self._readable: dict[str, bool] = {}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """All rows of the table `cells`, by cell."""
        return tables.read_all("cells", self.results).set_index("cell")

    @cached_property
    def _known(self) -> dict[str, tuple[Status, tuple[str, ...]]]:
        """Status and files of every cell that has a row."""
        rows = zip(self.rows.index, self.rows["status"], self.rows["files"].fillna("[]"), strict=True)
        return {str(cell): (status, tuple(json.loads(files))) for cell, status, files in rows}

    def status(self, cell: GridCell) -> Status | None:
        """What became of a cell; None: nothing yet, or some of its files are gone."""
        if cell.reason:
            return "skipped"
        status, files = self._known.get(cell.hash, (None, ()))
        return status if all(self._is_readable(file) for file in files) else None

    def _is_readable(self, file: str) -> bool:
        if file not in self._readable:
            path = self.results / file
            there = bool(tables.metadata(path)) if path.suffix == ".parquet" else path.is_file()
            self._readable[file] = there
        return self._readable[file]

    def record(self, cell: GridCell, outcome: Outcome, place: Place) -> None:
        """Write the row of a cell."""
        record(self.results, cell, outcome, place)


def record(results: Path, cell: GridCell, outcome: Outcome, place: Place) -> None:
    """Write the row of a cell, whatever process knows what became of it."""
    path = results / "cells" / cell.group / f"{cell.run}.{cell.kind}-{cell.hash}.cells.parquet"
    with writing(results):
        tables.write("cells", [row(cell, outcome, place)], path, {})


def row(cell: GridCell, outcome: Outcome, place: Place) -> dict[str, object]:
    """What the tables say of a cell."""
    about: dict[str, object] = {
        "cell": cell.hash, "kind": cell.kind, "run": cell.run, "task": cell.task, "contestant": cell.contestant,
        "preset": cell.preset, "seed": cell.seed, "status": outcome.status, "reason": outcome.reason,
        "version": __version__,
    }  # fmt: skip
    if outcome.status == "skipped":
        return about
    return about | {
        "files": json.dumps(sorted(outcome.files)), "seconds": outcome.seconds, "device": device_name(place.device),
        "hardware": hardware(), "threads": place.threads, "libraries": libraries(),
    }  # fmt: skip


def paths(results: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Files as a row names them: relative to the results folder."""
    return tuple(path.relative_to(results).as_posix() for path in files)


def device_name(device: str) -> str:
    """`cpu`, or the accelerator's own name."""
    if device == "cpu":
        return device
    from iclbench.devices import label

    return label(device)


@cache
def hardware() -> str:
    """Processor, number of its cores and memory of this machine, as far as it says."""
    import os

    names = [platform.processor() or platform.machine()]
    for path, key in {"/proc/cpuinfo": "model name", "/proc/meminfo": "MemTotal"}.items():
        lines = Path(path).read_text().splitlines() if Path(path).is_file() else []
        found = next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)
        if found and key == "model name":
            names[0] = found
        elif found:
            names.append(f"{round(int(found.split()[0]) / 2**20)} GiB")
    return ", ".join([names[0], f"{os.cpu_count()} cores", *names[1:]])


@cache
def libraries() -> str:
    """Python and the libraries that values may depend on, with their versions, as JSON."""
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(found)
