"""`iclbench list`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results


def list_things(
    what: Annotated[
        str,
        typer.Argument(autocompletion=completion.lists, help="tasks, backbones, baselines, families, grids or runs."),
    ] = "all",
    json: Json = False,
    results: Results = RESULTS,
) -> None:
    """List tasks, backbones, baselines, families, grids and runs."""
