"""Runs in the package: `iclbench/reference/NAME`, a folder with the configuration and the weights of a finished run.

They are named `reference/NAME`, like the runs of packed results, and are read where they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from iclbench.core.errors import UsageError
from iclbench.core.files import digest_path
from iclbench.store.runs import Run

FOLDER = "reference"
# The runs for users' tables, by the kind of the target.
TABLE_RUNS = {"class": f"{FOLDER}/cells-classification", "number": f"{FOLDER}/cells-regression"}


def shipped_folder() -> Path:
    """The folder of runs in the package."""
    return Path(__file__).resolve().parents[1] / FOLDER


def shipped_names() -> list[str]:
    """The names of all runs in the package, such as `reference/cells-regression`."""
    return sorted(f"{FOLDER}/{path.parent.name}" for path in shipped_folder().glob("*/config.toml"))


def shipped_run(name: str) -> Run | None:
    """The run of the package with this name, with or without `reference/`; None if there is none."""
    full_name = name if "/" in name else f"{FOLDER}/{name}"
    return Run(shipped_folder() / full_name.removeprefix(f"{FOLDER}/")) if full_name in shipped_names() else None


def ship(run: Run, name: str) -> Path:
    """Copy the configuration and the weights of a finished run into the package, and return the folder.

    Raises:
        UsageError: the run is not finished or its weights are damaged.
    """
    if run.verified_metadata(run.weights, None) is None:
        raise UsageError(
            f"run '{run.name}' has no weights, or they are damaged; train it to its end", code="not-finished"
        )
    folder = shipped_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in (run.path / "config.toml", run.weights, digest_path(run.weights)):
        shutil.copyfile(path, folder / path.name)
    # Like an unpacked run, it has neither branches nor tables.
    (folder / Run.UNPACKED).write_text(f"{FOLDER}/{name}\n", encoding="utf-8")
    return folder
