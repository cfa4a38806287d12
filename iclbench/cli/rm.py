"""`iclbench rm RUN...`: deletes runs with all that was found out about them."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from iclbench.cli.terminal import say
from iclbench.core.errors import UsageError
from iclbench.core.formats import nbytes, plural
from iclbench.sweep.cleaning import parts_of, remove_run


def rm(run: list[str], yes: bool, results: Path) -> None:
    """Delete runs: folder, tables, rows of sweeps. Packed results are left alone."""
    names = list(dict.fromkeys(run))
    found = {name: parts_of(results, name) for name in names}  # a mistyped name fails before anything is deleted
    if not yes:
        if not (sys.stdin and sys.stdin.isatty()):
            raise UsageError(f"nobody can be asked whether to delete {', '.join(names)}; give --yes")
        for name, parts in found.items():
            say(f"{name}: {plural(len(parts), 'part')}, {nbytes(_size(parts))}")
        if not typer.confirm(f"delete {plural(len(names), 'run')} and all that was evaluated of them?", err=True):
            raise typer.Exit(1)
    for name in names:
        say(f"deleted run '{name}': {nbytes(remove_run(results, name))}")


def _size(parts) -> int:  # type: ignore[no-untyped-def]
    return sum(part.size for part in parts)
