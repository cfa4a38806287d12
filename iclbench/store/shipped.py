"""Runs that are part of the package. Each is a folder `iclbench/reference/NAME` with the configuration and the weights
of a finished run.

They are named `reference/NAME`, like runs in packed results. They are read from the package and not copied to the
results folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from iclbench.core.errors import UsageError
from iclbench.core.files import digest_path
from iclbench.store.runs import Run

FOLDER = "reference"
# The runs that predict users' tables, by kind of target.
TABLE_RUNS = {"class": f"{FOLDER}/cells-classification", "number": f"{FOLDER}/cells-regression"}


def shipped_folder() -> Path:
    """Return the folder of runs in the package."""
    return Path(__file__).resolve().parents[1] / FOLDER


def shipped_names() -> list[str]:
    """Return the names of all runs in the package, such as `reference/cells-regression`."""
    return sorted(f"{FOLDER}/{path.parent.name}" for path in shipped_folder().glob("*/config.toml"))


def shipped_run(name: str) -> Run | None:
    """Return the run of the package with this name, which may omit `reference/`; None if no run has this name."""
    full_name = name if "/" in name else f"{FOLDER}/{name}"
    return Run(shipped_folder() / full_name.removeprefix(f"{FOLDER}/")) if full_name in shipped_names() else None


def ship(run: Run, name: str) -> Path:
    """Copy the configuration and the weights of a finished run into the package, and return the folder.

    Raises:
        UsageError: the run is not finished or its weights are damaged.
    """
    if run.verified_metadata(run.weights, None) is None:
        raise UsageError(
            f"run '{run.name}' has no weights, or they are damaged; finish its training", code="not-finished"
        )
    folder = shipped_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in (run.path / "config.toml", run.weights, digest_path(run.weights)):
        shutil.copyfile(path, folder / path.name)
    # Mark the run as unpacked, because it has no branches and no tables.
    (folder / Run.UNPACKED).write_text(f"{FOLDER}/{name}\n", encoding="utf-8")
    return folder
