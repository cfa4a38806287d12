"""What a person sees: results on stdout, progress on stderr; bars on a terminal, plain lines when piped."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from iclbench.cli.layout import Column, blocks
from iclbench.core import progress
from iclbench.core.formats import printable
from iclbench.core.progress import PrintableConsole

if TYPE_CHECKING:
    import pandas as pd

# Literal: names, paths and reasons may hold square brackets. Lines of prose are the terminal's to wrap.
out = PrintableConsole(highlight=False, markup=False, soft_wrap=True)
err = PrintableConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)

# Seconds between two plain progress lines.
_EVERY = 10.0
# Rows from which on a table is drawn without rich's own, which takes ten times as long.
_MANY = 200


def print_json(value: Any) -> None:
    """Plain data as JSON on stdout."""
    typer.echo(json.dumps(value, indent=2, default=lambda number: number.item()))


def print_rows(rows: pd.DataFrame) -> None:
    """The rows of a table as JSON, all digits of their numbers; null where there is none."""
    print_json(rows.astype(object).where(rows.notna(), None).to_dict("records"))


@contextmanager
def step_bar(label: str, total: int, done: int = 0) -> Iterator[progress.Update]:
    """A bar over a known number of steps, lines where there is no terminal; yields a function to be called with the
    steps done and a short text."""
    if err.is_terminal:
        with progress.step_bar(err, label, total, done) as move:
            yield move
        return
    started = last = time.monotonic()
    first = done

    def line(step: int, text: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if step < total and now - last < _EVERY:
            return
        last = now
        rate = (step - first) / max(1e-9, now - started)
        left = f", {(total - step) / rate:.0f} s left" if rate > 0 and step < total else ""
        err.print(f"{label} {step}/{total} {text}{left}")

    yield line


@contextmanager
def measuring() -> Iterator[Callable[[str], None]]:
    """A line on a terminal, gone afterwards, that says what is measured; yields a function to be called with that."""
    if not err.is_terminal:
        yield lambda text: None
        return
    with err.status(Text("measuring ...")) as status:
        yield lambda text: status.update(Text(f"measuring {text}"))


def echo(text: str, nl: bool = True) -> None:
    """Text on stdout as it is, which the terminal's width does not change."""
    typer.echo(printable(text), nl=nl)


def say(text: str) -> None:
    """A line of progress."""
    err.print(text)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int] = (),
    keys: Sequence[int] = (0,),
) -> None:
    """A result table on stdout, in which no cell is ever cut; its title may be wider than it is.

    Args:
        title: a line above it; empty: none.
        columns: headers, of several lines where they hold line breaks.
        rows: cells as they are printed, literally but for `[bold]...[/bold]`.
        numeric: indices of columns that stand on the right and are not folded.
        keys: indices of the columns that name a row; a table that is too wide repeats them.
    """
    if title:
        out.print(title, style="table.title")
    columns = [printable(header) for header in columns]
    lines = [[_styled(cell) for cell in row] for row in rows]
    needs = [
        _needs([Text(header), *(line[index] for line in lines)], index not in numeric)
        for index, header in enumerate(columns)
    ]
    prose, whole = widths()
    parts = blocks(needs, prose, keys)
    if len(parts) > 1 or any(part.width > prose for part in parts):
        parts = blocks(needs, whole, keys)
    for number, part in enumerate(parts):
        if number:
            out.print()
        rows_of_part = [[line[index] for index in part.columns] for line in ([Text(c) for c in columns], *lines)]
        if len(lines) >= _MANY and all(map(_fits, rows_of_part, repeat(part.widths))):
            right = [index in numeric for index in part.columns]
            out.print(_Fitting(rows_of_part, part.widths, right), soft_wrap=False, crop=False)
            continue
        shown = Table(box=None, pad_edge=False, header_style="bold", width=part.width)
        for index, width in zip(part.columns, part.widths, strict=True):
            justify: Literal["left", "right"] = "right" if index in numeric else "left"
            shown.add_column(Text(columns[index]), justify=justify, overflow="fold", width=width)
        for row in rows_of_part[1:]:
            shown.add_row(*row)
        out.print(shown, soft_wrap=False, crop=False)


def _fits(row: Sequence[Text], widths: Sequence[int]) -> bool:
    """Whether no cell of a row is folded."""
    return all("\n" not in cell.plain and cell.cell_len <= width for cell, width in zip(row, widths, strict=True))


@dataclass(frozen=True)
class _Fitting:
    """A table without folded cells, the header first, as rich's own table draws it.

    Attributes:
        rows: cells.
        widths: of the columns.
        right: which columns are aligned to the right.
    """

    rows: Sequence[Sequence[Text]]
    widths: Sequence[int]
    right: Sequence[bool]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for number, row in enumerate(self.rows):
            style = None if number else console.get_style("bold")
            for place, (cell, width, right) in enumerate(zip(row, self.widths, self.right, strict=True)):
                space, gap = " " * (width - cell.cell_len), "  " if place else ""
                if not cell.spans:
                    yield Segment(f"{gap}{space}{cell.plain}" if right else f"{gap}{cell.plain}{space}", style)
                    continue
                yield Segment(gap + space if right else gap)
                yield from cell.render(console)
                yield Segment("" if right else space)
            yield Segment.line()


def widths() -> tuple[int, int]:
    """Letters per line that prose is folded to, and those that a row is broken at.

    A pipe has no width of its own: prose stays readable there, and rows whole for scripts that read line by line.
    """
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given), int(given)
    return (out.width, out.width) if out.is_terminal else (80, 200)


def _styled(cell: str) -> Text:
    """The cell, literally but for the one style that tables use."""
    cell = printable(cell)
    if (bold := re.fullmatch(r"\[bold\](.*?)\[/bold\](.*)", cell, re.DOTALL)) is None:
        return Text(cell)
    return Text.assemble((bold[1], "bold"), bold[2])


def _needs(cells: Sequence[Text], folds: bool) -> Column:
    """What a column of these cells needs; one that may be folded is, between words."""
    texts = [cell.plain for cell in cells]
    lines = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
    words = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return Column(lines, words if folds else lines)
