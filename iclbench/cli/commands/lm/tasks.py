"""`iclbench lm tasks`: what language models can be asked, and whether its data are here."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import DataDir, Json, MaxBytes, Trust


def tasks(
    name: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.language_tasks,
            help="Tasks, families or suites; none: all, a card's subsets in one line.",
        ),
    ] = None,
    prompt: Annotated[bool, typer.Option("--prompt", help="Print one whole prompt, as a model is given it.")] = False,
    shots: Annotated[
        int | None, typer.Option("--shots", min=0, help="Demonstrations in that prompt; default: the card's.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Evaluation seed of that prompt.")] = 0,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    json: Json = False,
) -> None:
    """List the tasks of language models, with the number of examples or the file that is missing."""
