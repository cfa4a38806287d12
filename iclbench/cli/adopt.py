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
    from iclbench.cli.terminal import out, say
    from iclbench.config.runs import find

    for name in run:
        found = find(results, name)
        for code in found.adopt():
            say(f"warning: nobody can check that run '{name}' was trained with today's sources of '{code}'")
        out.print(name)
