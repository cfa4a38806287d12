"""`iclbench report`: one HTML page, figures and tables from a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli.options import RESULTS, Results


def report(
    results: Results = RESULTS,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write.", show_default="RESULTS/report")] = None,
    formats: Annotated[
        str, typer.Option("--formats", help="Figure files beside the page: png,svg; 'none' for the page alone.")
    ] = "png,svg",
    title: Annotated[str | None, typer.Option("--title", help="Title of the page.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page, figures (PNG, SVG) and tables (CSV, Markdown, LaTeX)."""
    from iclbench.cli.terminal import out as stdout
    from iclbench.cli.terminal import say
    from iclbench.report import build

    chosen = (
        () if formats.strip().lower() == "none" else tuple(f.strip().lower() for f in formats.split(",") if f.strip())
    )
    folder = out or results / "report"
    say(f"reading the tables in {results}, writing to {folder}")
    page = build(results, folder, formats=chosen, title=title)
    stdout.print(str(page.resolve()))
    if show:
        typer.launch(page.resolve().as_uri())
