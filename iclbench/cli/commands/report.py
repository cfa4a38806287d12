"""`iclbench report`: one HTML page, tables and pictures from a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results

_MANY = "; several by commas or by repeating the option."


def report(
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
