"""`iclbench lm tasks`: list the tasks for language models, and show whether their data are available."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import DataDir, Json, MaxBytes, Trust
from iclbench.core.errors import UsageError


def command(
    name: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.language_tasks,
            help="Tasks, families or suites (default: all tasks, with the subsets of a card in one line).",
        ),
    ] = None,
    prompt: Annotated[bool, typer.Option("--prompt", help="Print one complete prompt of a task.")] = False,
    shots: Annotated[
        int | None,
        typer.Option("--shots", min=0, help="Number of demonstrations in the prompt (default: as on the card)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Evaluation seed of the prompt.")] = 0,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    json: Json = False,
) -> None:
    """List the tasks for language models, with their numbers of examples or their missing files."""
    from iclbench.cli.lm.task_table import folded_by_card, print_prompt, print_tasks, row_of
    from iclbench.cli.terminal import print_json
    from iclbench.language.tasks.cards import shipped_tasks
    from iclbench.language.tasks.selection import language_tasks

    if shots is not None and not prompt:
        raise UsageError("--shots needs --prompt: iclbench lm tasks to-upper --prompt --shots 2", code="missing-value")
    if prompt:
        print_prompt(language_tasks(name or []), shots, seed, data_dir)
        return
    rows = [row_of(task, data_dir) for task in (language_tasks(name) if name else shipped_tasks())]
    if json:
        print_json(rows)
    elif name:
        print_tasks(rows)
    else:
        print_tasks(folded_by_card(rows), with_groups=True)
