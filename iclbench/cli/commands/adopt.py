"""`iclbench adopt RUN...`: runs of plug-ins that version 0.1.0 made, which kept no hash of the plug-in's sources."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results, Trust


def adopt(
    run: Annotated[
        list[str], typer.Argument(autocompletion=completion.runs, help="Runs of your plug-ins, made by version 0.1.0.")
    ],
    results: Results = RESULTS,
    trust: Trust = None,
) -> None:
    """Take it that these runs were trained with today's sources of their plug-ins."""
