"""`iclbench report`: write an HTML report, tables and figures from a results folder."""

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

# The sections in reading order. `iclbench.report.sections` has the same list, but its import takes seconds.
SECTIONS = (
    "summary",
    "heat-map",
    "ranking",
    "named-pairs",
    "pareto",
    "over-training",
    "equal-budget",
    "overview",
    "learning-curves",
    "leaderboard",
    "targets",
    "table-ranks",
    "in-context",
    "solutions",
    "state-sizes",
    "loops",
    "gap",
    "related",
    "context-size",
    "examples",
    "extrapolation",
    "shifts",
    "probing",
    "rank",
    "representation",
    "published",
    "training",
    "rate-window",
    "pools",
    "plane",
    "language",
    "costs",
    "coverage",
    "missing",
    "provenance",
)
_SEVERAL_HINT = "separate several names with commas, or repeat the option"


def command(
    results: Results = RESULTS,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report.", show_default="RESULTS/report")
    ] = None,
    formats: Annotated[
        str,
        typer.Option("--formats", help="Also write figures as files: png, svg, pdf, or several (png,pdf)."),
    ] = "none",
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", autocompletion=completion.several_tasks, help=f"Report only on this task; {_SEVERAL_HINT}."
        ),
    ] = None,
    contestants: Annotated[
        list[str] | None,
        typer.Option(
            "--contestants",
            autocompletion=completion.several_contestants_and_runs,
            help=f"Show only these models, runs, baselines and oracles; {_SEVERAL_HINT}.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help=f"Write only this section; {_SEVERAL_HINT}. Sections: {', '.join(SECTIONS)}."),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title of the report.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Number of processes.", show_default="one per core")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write a self-contained HTML report and its tables as CSV, Markdown and LaTeX."""
    from iclbench.cli.terminal import out as stdout
    from iclbench.cli.terminal import say, step_bar
    from iclbench.report import build
    from iclbench.report.sections import selected_names
    from iclbench.report.workers import available_workers

    sections = selected_names(_split(only or []))
    folder = out or results / "report"
    say(f"reading the tables in {results}, writing to {folder}")
    with ExitStack() as stack:

        @cache
        def bar(total: int) -> Callable[[int, str], None]:
            return stack.enter_context(step_bar("sections", total))

        report = build(
            results,
            folder,
            formats=() if formats.strip().lower() == "none" else _split([formats.lower()]),
            tasks=_split(task or []),
            contestants=_split(contestants or []),
            only=sections,
            title=title,
            processes=workers or available_workers(),
            progress=lambda done, total, section: bar(total)(done, section),
        )
    for reason, number in Counter(report.missing_pictures.values()).items():
        say(f"{number} of {report.pictures + len(report.missing_pictures)} figures are missing: {reason}")
    for section, reason in report.failed_sections.items():
        say(f"section '{section}' failed: {reason} (this is a bug)")
    if report.script_error:
        say(f"the report has tables but no figures: {report.script_error}")
    stdout.print(str(report.page.resolve()))
    if show:
        typer.launch(report.page.resolve().as_uri())
    if report.missing_pictures or report.script_error or report.failed_sections:
        raise typer.Exit(1)


def _split(options: list[str]) -> list[str]:
    """Split the comma-separated values of an option into names.

    >>> _split(["png, svg", "pdf"])
    ['png', 'svg', 'pdf']
    """
    return [name.strip() for option in options for name in option.split(",") if name.strip()]
