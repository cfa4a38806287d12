"""`iclbench show NAME`: print a task, backbone, baseline, grid or run, or write the glyphs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results
from iclbench.core import trust
from iclbench.core.errors import UsageError


def command(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.names_to_show,
            help="Name of a task, suite, backbone, baseline, grid or run, package.module:Class of a backbone, path to "
            "a card, or 'glyphs'.",
        ),
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", "-p", autocompletion=completion.presets, help="Show only this preset of a task or grid."
        ),
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Print the file of the card.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the commands of a grid for a shell, one per line.")
    ] = False,
    png: Annotated[Path | None, typer.Option("--png", help="Write a picture of the glyphs to this file.")] = None,
    json: Json = False,
    results: Results = RESULTS,
) -> None:
    """Show a task with its sampled process and sizes, a backbone with its settings, a baseline, a grid or a run.

    Code named by a card or a run is not executed. A backbone given as package.module:Class is imported.
    """
    from iclbench.cli.show_values import commands_of, print_values, values_of
    from iclbench.cli.terminal import echo, print_json
    from iclbench.config.cards import card_file

    trust.ask_user = None  # untrusted code is not loaded
    if preset is not None and (card or png is not None or name == "glyphs"):
        raise _preset_error()
    if name == "glyphs" or png is not None:
        if name != "glyphs" or png is None:
            code = "missing-value" if png is None else "not-applicable"
            raise UsageError("glyphs and --png must be used together: iclbench show glyphs --png FILE", code=code)
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
    if preset is not None and not {"presets", "runs"} & values.keys():  # not a task or a grid
        raise _preset_error()
    if json:
        print_json(values)
    else:
        print_values(values, name)


def _preset_error() -> UsageError:
    return UsageError("--preset applies only to tasks and grids; remove it", code="not-applicable")
