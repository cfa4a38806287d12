"""`iclbench rm RUN...`: delete runs with all their results."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results
from iclbench.core.errors import UsageError


def command(
    run: Annotated[list[str], typer.Argument(autocompletion=completion.runs, help="Runs to delete.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    results: Results = RESULTS,
) -> None:
    """Delete runs with their tables, and their rows in the tables of sweeps. Packed results are not changed."""
    from iclbench.cli.terminal import say
    from iclbench.core.formats import nbytes, plural
    from iclbench.sweep.cleaning import parts_of, remove_run

    names = list(dict.fromkeys(run))
    parts_by_run = {
        name: parts_of(results, name) for name in names
    }  # report a mistyped name before anything is deleted
    if not yes:
        if not (sys.stdin and sys.stdin.isatty()):
            raise UsageError(f"confirm the deletion of {', '.join(names)} with --yes", code="missing-value")
        for name, parts in parts_by_run.items():
            say(f"{name}: {plural(len(parts), 'part')}, {nbytes(sum(part.size for part in parts))}")
        if not typer.confirm(f"delete {plural(len(names), 'run')} and all their results?", err=True):
            raise typer.Exit(1)
    for name in names:
        say(f"deleted run '{name}': {nbytes(remove_run(results, name))}")
