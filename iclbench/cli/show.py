"""`iclbench show NAME`: one task, backbone, baseline, grid or run, with every number; or the glyphs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results
from iclbench.core import trust
from iclbench.core.errors import UsageError

NO_PRESET = "--preset is of the values of a task and of a grid's runs and commands; drop it here"


def command(
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
    from iclbench.cli.show_values import commands_of, print_values, values_of
    from iclbench.cli.terminal import echo, print_json
    from iclbench.config.cards import card_file

    trust.ask = None  # nothing is loaded here that was not trusted before
    if preset is not None and (card or png is not None or name == "glyphs"):
        raise UsageError(NO_PRESET)
    if name == "glyphs" or png is not None:
        if name != "glyphs" or png is None:
            raise UsageError("only glyphs are shown as a picture: iclbench show glyphs --png FILE")
        from iclbench.cli.contact_sheet import write_glyphs

        echo(write_glyphs(png))
        return
    if commands:
        for line in commands_of(name, preset, None if results == RESULTS else results):
            echo(line)
        return
    if card:
        echo(card_file(name).read_text(encoding="utf-8-sig"), nl=False)
        return
    values = values_of(name, preset, results, defaults=json)
    if preset is not None and not {"presets", "runs"} & values.keys():  # of tasks and of grids
        raise UsageError(NO_PRESET)
    if json:
        print_json(values)
    else:
        print_values(values, name)
