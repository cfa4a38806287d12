"""`iclbench prune`: removes what nothing needs any more."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli.options import RESULTS, Results


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    results: Results = RESULTS,
) -> None:
    """Remove temporary files of killed processes, unusable checkpoints, and tables of runs that are gone."""
