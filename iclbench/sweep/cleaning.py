"""Deletion of runs with all their results, and of files that are no longer needed.

Only files in the folders `runs`, `tables`, `cells` and `rates` of a results folder are removed. Packed results and
other files are never removed, except for temporary files of an interrupted `--pack`.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from iclbench import tables
from iclbench.core.errors import UnknownNameError
from iclbench.store.inventory import read_rows
from iclbench.store.locks import is_alive
from iclbench.store.runs import Run, all_runs, check_name, write_errors
from iclbench.tables.runs import trained_runs

_TEMPORARY_NAME = re.compile(r"\..+\.(\d+)\.tmp")
_TEMPORARY_PACKED_NAME = re.compile(r"\..+\.(?:parquet|safetensors|sha256)\.[0-9a-f]{8}\.(\d+)\.tmp")
_TABLES = "|".join(tables.SCHEMAS)
_TABLE_OF_REMOVED = "table of a removed run"
_KINDS = "train|evaluate|probe|cost"
# A temporary file must be unchanged for this many seconds before it is removed, since a process on another machine may
# still be writing it.
_UNCHANGED_SECONDS = 60.0


@dataclass(frozen=True)
class Part:
    """A file or folder to remove.

    Attributes:
        path: a file or a folder.
        kind: the kind of file or folder, as a singular noun.
    """

    path: Path
    kind: str

    @property
    def size(self) -> int:
        """Bytes on disk."""
        paths = self.path.rglob("*") if self.path.is_dir() and not self.path.is_symlink() else [self.path]
        return sum(path.lstat().st_size for path in paths if not path.is_dir() or path.is_symlink())


def parts_of(results: Path, name: str) -> list[Part]:
    """Return the folder, the tables and the sweep rows of a run, including those of methods that were applied to it.

    Raises:
        UnknownNameError: no run, table or sweep row has this name.
    """
    folder = results / "runs" / check_name(name)
    parts = [Part(folder, "run")] if folder.is_dir() or folder.is_symlink() else []
    parts += [Part(path, "table") for path in _table_files(results) if _owner(path) == name]
    parts += [Part(path, "sweep row") for path in _cell_files(results) if _owner(path) == name]
    if not parts:
        raise UnknownNameError("run", name, [run.name for run in all_runs(results)], hint=f"(in {results})")
    return parts


def remove_run(results: Path, name: str) -> int:
    """Remove all parts of a run and return the number of freed bytes.

    Raises:
        UnknownNameError: no run, table or sweep row has this name.
        IclbenchError: another process is training the run.
    """
    parts, run = parts_of(results, name), Run(results / "runs" / name)
    freed_bytes = sum(part.size for part in parts)
    with write_errors(results):
        if run.path.is_dir():
            with run.lock():
                _remove(parts)
        else:
            _remove(parts)
        with suppress(UnknownNameError):  # files that another process wrote before the folder was removed
            _remove(parts_of(results, name))
        _forget_scores(results, name)
    return freed_bytes


def leftovers(results: Path) -> list[Part]:
    """Return the files that are no longer needed: temporary files of dead processes, unusable checkpoints, and the
    tables and sweep rows of removed runs, except rows of costs, which do not depend on the weights.

    If the results folder has no folder `runs`, no run counts as removed.
    """
    parts = [Part(path, "temporary file") for path in _temporary_files(results)]
    parts += [Part(path, "unusable checkpoint") for path in sorted(results.glob("runs/*/checkpoints/**/*.unusable"))]
    if (results / "runs").is_dir():
        runs = {path.name for path in (results / "runs").iterdir()}
        removed_runs = {name for name in _evaluated_runs(results) if name not in runs}
        parts += [Part(path, _TABLE_OF_REMOVED) for path in _table_files(results) if _owner(path) in removed_runs]
        parts += [
            Part(path, "sweep row of a removed run")
            for path in _cell_files(results)
            if _owner(path) in removed_runs and ".cost-" not in path.name
        ]
    return parts


def prune(results: Path, parts: Sequence[Part]) -> int:
    """Remove the parts that `leftovers` returned, and return the number of freed bytes."""
    freed_bytes = sum(part.size for part in parts)
    with write_errors(results):
        _remove(parts)
        for name in {_owner(part.path) for part in parts if part.kind == _TABLE_OF_REMOVED}:
            _forget_scores(results, str(name))
    return freed_bytes


def _table_files(results: Path) -> list[Path]:
    """Return the tables that evaluations, probes and cost measurements wrote for single contestants."""
    return sorted(path for path in (results / "tables").rglob("*.parquet") if path.parent.name != "summary")


def _cell_files(results: Path) -> list[Path]:
    return sorted((results / "cells").rglob("*.cells.parquet"))


def _owner(path: Path) -> str | None:
    """Return the name of the run or baseline that a table or a sweep row belongs to, without the name of a method that
    was applied to it. Return None if the file name has another form."""
    match = re.fullmatch(rf"(.+?)\.(?:{_KINDS})-[0-9a-f]+\.cells\.parquet", path.name)
    match = match or re.fullmatch(rf"(.+)\.(?:{_TABLES})\.parquet", path.name)
    return match[1].partition("+")[0] if match else None


def _evaluated_runs(results: Path) -> Iterator[str]:
    """Yield the names of runs that have tables. Baselines and language models are not runs."""
    for path in _table_files(results):
        if not path.name.endswith(".values.parquet"):
            continue
        # A damaged table has no rows here. The command that writes this table reports the damage.
        row = next(read_rows(path, ("kind", "seed", "preset")), None)
        is_run = row and row["kind"] == "backbone" and row["seed"] is not None and row["preset"] != "language"
        if is_run and (owner := _owner(path)) is not None:
            yield owner


def _temporary_files(results: Path) -> Iterator[Path]:
    command_files = [path for folder in tables.COMMAND_FOLDERS for path in sorted((results / folder).rglob(".*.tmp"))]
    packed_files = sorted(path for path in results.glob("*/.*.tmp") if path.parent.name not in tables.COMMAND_FOLDERS)
    patterns = dict.fromkeys(command_files, _TEMPORARY_NAME) | dict.fromkeys(packed_files, _TEMPORARY_PACKED_NAME)
    for path, pattern in patterns.items():
        match = pattern.fullmatch(path.name)
        if match and not is_alive(int(match[1])) and time.time() - path.lstat().st_mtime > _UNCHANGED_SECONDS:
            yield path


def _remove(parts: Iterable[Part]) -> None:
    for part in parts:
        if part.path.is_dir() and not part.path.is_symlink():
            shutil.rmtree(part.path)
        else:
            part.path.unlink(missing_ok=True)


def _forget_scores(results: Path, name: str) -> None:
    """Remove the rows of a run from the tables of scores, each of which holds all contestants of a prompt set."""
    for path in sorted((results / "tables").glob("*/summary/*.values.parquet")):
        try:
            scores = tables.read("values", path)
        except tables.TableError:
            continue  # the command that writes this table reports the damage
        other_scores = scores[trained_runs(scores).ne(name)]
        if not len(other_scores):
            path.unlink()
        elif len(other_scores) < len(scores):
            metadata = {k: v for k, v in tables.metadata(path).items() if k not in ("table", "schema", "sha256")}
            tables.write("values", other_scores, path, metadata)
