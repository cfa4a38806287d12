"""`iclbench show NAME`: one task, backbone, baseline, grid or run, with every number; or the glyphs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results


def show(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.everything,
            help="A task, suite, backbone (or package.module:Class), baseline, grid or run, a path to a card, or "
            "'glyphs'.",
        ),
    ],
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", autocompletion=completion.presets, help="Only this preset of a task or grid."),
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="The card's own file, to copy and change.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="The commands that a grid stands for, one per line, for a shell.")
    ] = False,
    png: Annotated[Path | None, typer.Option("--png", help="Where to write the contact sheet of the glyphs.")] = None,
    json: Json = False,
    results: Results = RESULTS,
) -> None:
    """Show what a task samples and how big it is, what a backbone's settings mean, a baseline, a grid or a run.

    Code that a card or a run names is not run; a backbone that is named as package.module:Class is.
    """
