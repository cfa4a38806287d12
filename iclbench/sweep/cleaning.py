"""Deleting runs with all that was found out about them, and what nothing needs any more.

Only what commands write of their own (`runs`, `tables` and `cells` of a results folder) is ever removed: packed results
and whatever else lies beside them are left alone, but for files that somebody who packed and was killed left half
written.
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
from iclbench.core.locks import alive
from iclbench.store.inventory import rows
from iclbench.store.runs import Run, all_runs, check_name, writing
from iclbench.tables.runs import trained_runs

_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")
# Of a file that is packed.
_OF_PACKED = re.compile(r"\..+\.(?:parquet|safetensors|sha256)\.[0-9a-f]{8}\.(\d+)\.tmp")
_TABLES = "|".join(tables.SCHEMAS)
_KINDS = "train|evaluate|probe|cost"
# Seconds without a change before a temporary file is left: its writer may be on another machine.
_STILL = 60.0


@dataclass(frozen=True)
class Part:
    """Something to be removed.

    Attributes:
        path: a file or a folder.
        what: what it is, in the singular.
    """

    path: Path
    what: str

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        inner = self.path.rglob("*") if self.path.is_dir() and not self.path.is_symlink() else [self.path]
        return sum(each.lstat().st_size for each in inner if not each.is_dir() or each.is_symlink())


def parts_of(results: Path, name: str) -> list[Part]:
    """A run's folder and every table and row of a sweep about it, also under the methods that were applied to it.

    Raises:
        UnknownNameError: there is no such run, and nothing is known of it.
    """
    folder = results / "runs" / check_name(name)
    there = folder.is_dir() or folder.is_symlink()
    found = [Part(folder, "run")] if there else []
    found += [Part(path, "table") for path in _tables(results) if _owner(path) == name]
    found += [Part(path, "row of a sweep") for path in _cells(results) if _owner(path) == name]
    if not found:
        raise UnknownNameError("run", name, [run.name for run in all_runs(results)], hint=f"(in {results})")
    return found


def remove_run(results: Path, name: str) -> int:
    """Remove all parts of a run; returns the bytes that were freed.

    Raises:
        UnknownNameError: there is none.
        IclbenchError: another process trains it.
    """
    parts, run = parts_of(results, name), Run(results / "runs" / name)
    freed = sum(part.size for part in parts)
    with writing(results):
        if run.path.is_dir():
            with run.lock():
                _remove(parts)
        else:
            _remove(parts)
        with suppress(UnknownNameError):  # what another process has written until the folder was gone
            _remove(parts_of(results, name))
        _forget_scores(results, name)
    return freed


def leftovers(results: Path) -> list[Part]:
    """What nothing needs: temporary files of dead processes, checkpoints that were set aside as unusable, and tables
    and rows of sweeps about runs that are gone. Without a folder of runs, none is taken for gone."""
    found = [Part(path, "temporary file") for path in _temporary(results)]
    found += [Part(path, "unusable checkpoint") for path in sorted(results.glob("runs/*/checkpoints/**/*.unusable"))]
    if (results / "runs").is_dir():
        there = {path.name for path in (results / "runs").iterdir()}
        gone = {name for name in _evaluated(results) if name not in there}
        found += [Part(path, "table of a run that is gone") for path in _tables(results) if _owner(path) in gone]
        found += [
            Part(path, "row of a sweep of a run that is gone")
            for path in _cells(results)
            if _owner(path) in gone and ".cost-" not in path.name
        ]
    return found


def prune(results: Path, parts: Sequence[Part]) -> int:
    """Remove what `leftovers` found; returns the bytes that were freed."""
    freed = sum(part.size for part in parts)
    with writing(results):
        _remove(parts)
        for name in {_owner(part.path) for part in parts if part.what == "table of a run that is gone"}:
            _forget_scores(results, str(name))
    return freed


def _tables(results: Path) -> list[Path]:
    """The files that evaluations, probes and measurements write about a single contestant."""
    return sorted(path for path in (results / "tables").rglob("*.parquet") if path.parent.name != "summary")


def _cells(results: Path) -> list[Path]:
    return sorted((results / "cells").rglob("*.cells.parquet"))


def _owner(path: Path) -> str | None:
    """The run or baseline that a table or a row is about, without the method that was applied to it."""
    found = re.fullmatch(rf"(.+?)\.(?:{_KINDS})-[0-9a-f]+\.cells\.parquet", path.name)
    found = found or re.fullmatch(rf"(.+)\.(?:{_TABLES})\.parquet", path.name)
    return found[1].partition("+")[0] if found else None


def _evaluated(results: Path) -> Iterator[str]:
    """Runs that own tables are about: what was trained here, and neither baselines nor language models."""
    for path in _tables(results):
        if not path.name.endswith(".values.parquet"):
            continue
        # A damaged table has no rows here: it is for the command that wrote it.
        first = next(rows(path, ("kind", "seed", "preset")), None)
        trained = first and first["kind"] == "backbone" and first["seed"] is not None and first["preset"] != "language"
        if trained and (owner := _owner(path)) is not None:
            yield owner


def _temporary(results: Path) -> Iterator[Path]:
    own = [(path, _TEMPORARY) for folder in tables.OWN for path in sorted((results / folder).rglob(".*.tmp"))]
    beside = sorted(path for path in results.glob("*/.*.tmp") if path.parent.name not in tables.OWN)
    for path, pattern in [*own, *((path, _OF_PACKED) for path in beside)]:
        found = pattern.fullmatch(path.name)
        if found and not alive(int(found[1])) and time.time() - path.lstat().st_mtime > _STILL:
            yield path


def _remove(parts: Iterable[Part]) -> None:
    for part in parts:
        if part.path.is_dir() and not part.path.is_symlink():
            shutil.rmtree(part.path)
        else:
            part.path.unlink(missing_ok=True)


def _forget_scores(results: Path, name: str) -> None:
    """Take the run out of the tables of scores, which hold all contestants of a prompt set."""
    for path in sorted((results / "tables").glob("*/summary/*.values.parquet")):
        try:
            scores = tables.read("values", path)
        except tables.TableError:
            continue  # left to the command that wrote it
        others = scores[trained_runs(scores).ne(name)]
        if not len(others):
            path.unlink()
        elif len(others) < len(scores):
            about = {k: v for k, v in tables.metadata(path).items() if k not in ("table", "schema", "sha256")}
            tables.write("values", others, path, about)
