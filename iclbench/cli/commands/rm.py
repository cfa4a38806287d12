"""`iclbench rm RUN...`: deletes runs with all that was found out about them."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results


def rm(
    run: Annotated[list[str], typer.Argument(autocompletion=completion.runs, help="Runs to delete.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    results: Results = RESULTS,
) -> None:
    """Delete runs: folder, tables, rows of sweeps. Packed results are left alone."""
