"""`iclbench report`: one HTML page, tables and pictures from a results folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results

_MANY = "; several by commas or by repeating the option."


def command(
    results: Results = RESULTS,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write.", show_default="RESULTS/report")] = None,
    formats: Annotated[
        str, typer.Option("--formats", help="Picture files beside the page: png, svg or png,svg.")
    ] = "none",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", autocompletion=completion.several_tasks, help=f"Report on this task alone{_MANY}"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help=f"Write this section alone (heat-map, ranking, learning-curves, ...){_MANY}"),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title of the page.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes at work.", show_default="one per core")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page and its tables (CSV, Markdown, LaTeX); pictures with --formats."""
    from iclbench.cli.terminal import out as stdout
    from iclbench.cli.terminal import say, step_bar
    from iclbench.report import build
    from iclbench.report.workers import available

    folder = out or results / "report"
    say(f"reading the tables in {results}, writing to {folder}")
    with ExitStack() as stack:

        @cache
        def bar(total: int) -> Callable[[int, str], None]:
            return stack.enter_context(step_bar("sections", total))

        built = build(
            results,
            folder,
            formats=() if formats.strip().lower() == "none" else _listed([formats.lower()]),
            tasks=_listed(task or []),
            only=_listed(only or []),
            title=title,
            processes=workers or available(),
            progress=lambda done, total, last: bar(total)(done, last),
        )
    for reason, number in Counter(built.missing_pictures.values()).items():
        say(f"{number} of {built.pictures + len(built.missing_pictures)} pictures are missing: {reason}")
    for title, reason in built.failed_sections.items():
        say(f"section '{title}' could not be made: {reason} (this is a bug)")
    if built.script_error:
        say(f"the page has its tables and no figures: {built.script_error}")
    stdout.print(str(built.page.resolve()))
    if show:
        typer.launch(built.page.resolve().as_uri())
    if built.missing_pictures or built.script_error or built.failed_sections:
        raise typer.Exit(1)


def _listed(given: list[str]) -> list[str]:
    """The names in options that take several, separated by commas.

    >>> _listed(["png, svg", "pdf"])
    ['png', 'svg', 'pdf']
    """
    return [name.strip() for each in given for name in each.split(",") if name.strip()]
