"""`iclbench report`: one HTML page, tables and pictures from a results folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import typer

from iclbench.cli.terminal import out as stdout
from iclbench.cli.terminal import say, step_bar
from iclbench.report import build
from iclbench.report.workers import available


def report(
    results: Path,
    out: Path | None,
    formats: str,
    task: list[str] | None,
    only: list[str] | None,
    title: str | None,
    workers: int | None,
    show: bool,
) -> None:
    """Write one self-contained HTML page and its tables (CSV, Markdown, LaTeX); pictures with --formats."""
    folder = out or results / "report"
    say(f"reading the tables in {results}, writing to {folder}")
    with ExitStack() as stack:

        @cache
        def bar(total: int) -> Callable[[int, str], None]:
            return stack.enter_context(step_bar("sections", total))

        found = build(
            results,
            folder,
            formats=() if formats.strip().lower() == "none" else _listed([formats.lower()]),
            tasks=_listed(task or []),
            only=_listed(only or []),
            title=title,
            processes=workers or available(),
            progress=lambda done, total, last: bar(total)(done, last),
        )
    for reason, number in Counter(found.missing.values()).items():
        say(f"{number} of {found.pictures + len(found.missing)} pictures are missing: {reason}")
    for title, reason in found.broken.items():
        say(f"section '{title}' could not be made: {reason} (this is a bug)")
    if found.undrawn:
        say(f"the page has its tables and no figures: {found.undrawn}")
    stdout.print(str(found.page.resolve()))
    if show:
        typer.launch(found.page.resolve().as_uri())
    if found.missing or found.undrawn or found.broken:
        raise typer.Exit(1)


def _listed(given: list[str]) -> list[str]:
    """
    >>> _listed(["png, svg", "pdf"])
    ['png', 'svg', 'pdf']
    """
    return [name.strip() for each in given for name in each.split(",") if name.strip()]
