"""Print results on stdout and progress on stderr. Progress is a bar on a terminal and plain lines in a pipe."""

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

from iclbench.cli.layout import ColumnWidth, blocks
from iclbench.core import progress
from iclbench.core.formats import printable
from iclbench.core.progress import PrintableConsole

if TYPE_CHECKING:
    import pandas as pd

# Markup is off, since names, paths and error messages may contain square brackets. Long lines are wrapped by the
# terminal.
out = PrintableConsole(highlight=False, markup=False, soft_wrap=True)
err = PrintableConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)

# Minimum number of seconds between two plain progress lines.
_LINE_INTERVAL = 10.0
# Tables with at least this many rows are drawn without `rich.table`, which takes ten times as long.
_FAST_ROWS = 200


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout. NumPy scalars are converted to numbers."""
    typer.echo(json.dumps(value, indent=2, default=lambda number: number.item()))


def print_rows(rows: pd.DataFrame) -> None:
    """Print the rows of a table as JSON. Numbers have all their digits, and missing values are null."""
    print_json(rows.astype(object).where(rows.notna(), None).to_dict("records"))


@contextmanager
def step_bar(label: str, total: int, done: int = 0) -> Iterator[progress.Update]:
    """Show progress over a known number of steps: a bar on a terminal, otherwise plain lines.

    Yields a function that updates the progress with the number of finished steps and a short text.
    """
    if err.is_terminal:
        with progress.step_bar(err, label, total, done) as move:
            yield move
        return
    start_time = last_line_time = time.monotonic()
    first_step = done

    def print_line(step: int, text: str = "") -> None:
        nonlocal last_line_time
        now = time.monotonic()
        if step < total and now - last_line_time < _LINE_INTERVAL:
            return
        last_line_time = now
        rate = (step - first_step) / max(1e-9, now - start_time)
        remaining = f", {(total - step) / rate:.0f} s left" if rate > 0 and step < total else ""
        err.print(f"{label} {step}/{total} {text}{remaining}")

    yield print_line


@contextmanager
def measurement_status() -> Iterator[Callable[[str], None]]:
    """Show the current measurement in a temporary line if stderr is a terminal. Yield a function that sets the text."""
    if not err.is_terminal:
        yield lambda text: None
        return
    with err.status(Text("measuring ...")) as status:
        yield lambda text: status.update(Text(f"measuring {text}"))


def echo(text: str, nl: bool = True) -> None:
    """Print text on stdout without wrapping."""
    typer.echo(printable(text), nl=nl)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    err.print(text)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int] = (),
    keys: Sequence[int] = (0,),
) -> None:
    """Print a result table on stdout. Cells are not truncated, and the title may be wider than the table.

    Args:
        title: a line above the table; empty for no title.
        columns: headers, which may contain line breaks.
        rows: the cells as text, in which only `[bold]...[/bold]` is markup.
        numeric: indices of columns that are right-aligned and not folded.
        keys: indices of the columns that name a row, which are repeated in a table of several blocks.
    """
    if title:
        out.print(title, style="table.title")
    columns = [printable(header) for header in columns]
    lines = [[_styled_text(cell) for cell in row] for row in rows]
    column_widths = [
        _column_width([Text(header), *(line[index] for line in lines)], index not in numeric)
        for index, header in enumerate(columns)
    ]
    prose_width, row_width = output_widths()
    table_blocks = blocks(column_widths, prose_width, keys)
    if len(table_blocks) > 1 or any(block.width > prose_width for block in table_blocks):
        table_blocks = blocks(column_widths, row_width, keys)
    for number, block in enumerate(table_blocks):
        if number:
            out.print()
        block_rows = [[line[index] for index in block.columns] for line in ([Text(c) for c in columns], *lines)]
        if len(lines) >= _FAST_ROWS and all(map(_fits, block_rows, repeat(block.widths))):
            is_right = [index in numeric for index in block.columns]
            out.print(_UnfoldedTable(block_rows, block.widths, is_right), soft_wrap=False, crop=False)
            continue
        rich_table = Table(box=None, pad_edge=False, header_style="bold", width=block.width)
        for index, width in zip(block.columns, block.widths, strict=True):
            justify: Literal["left", "right"] = "right" if index in numeric else "left"
            rich_table.add_column(Text(columns[index]), justify=justify, overflow="fold", width=width)
        for row in block_rows[1:]:
            rich_table.add_row(*row)
        out.print(rich_table, soft_wrap=False, crop=False)


def _fits(row: Sequence[Text], widths: Sequence[int]) -> bool:
    """Return whether all cells of a row fit into their columns without folding."""
    return all("\n" not in cell.plain and cell.cell_len <= width for cell, width in zip(row, widths, strict=True))


@dataclass(frozen=True)
class _UnfoldedTable:
    """A table without folded cells, with the look of `rich.table`. The first row is the header.

    Attributes:
        rows: cells.
        widths: widths of the columns.
        right: whether each column is aligned to the right.
    """

    rows: Sequence[Sequence[Text]]
    widths: Sequence[int]
    right: Sequence[bool]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for number, row in enumerate(self.rows):
            style = None if number else console.get_style("bold")
            for index, (cell, width, right) in enumerate(zip(row, self.widths, self.right, strict=True)):
                space, gap = " " * (width - cell.cell_len), "  " if index else ""
                if not cell.spans:
                    yield Segment(f"{gap}{space}{cell.plain}" if right else f"{gap}{cell.plain}{space}", style)
                    continue
                yield Segment(gap + space if right else gap)
                yield from cell.render(console)
                yield Segment("" if right else space)
            yield Segment.line()


def output_widths() -> tuple[int, int]:
    """Return the width in characters to which text is folded, and the width above which a table is split into blocks.

    In a pipe, text is folded to a readable width, and only very wide tables are split, because scripts read the output
    line by line.
    """
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns):
        return int(columns), int(columns)
    return (out.width, out.width) if out.is_terminal else (80, 200)


def _styled_text(cell: str) -> Text:
    """Convert a cell to text in which only bold is markup."""
    cell = printable(cell)
    if (bold := re.fullmatch(r"\[bold\](.*?)\[/bold\](.*)", cell, re.DOTALL)) is None:
        return Text(cell)
    return Text.assemble((bold[1], "bold"), bold[2])


def _column_width(cells: Sequence[Text], folds: bool) -> ColumnWidth:
    """Return the width needed by a column with these cells. If `folds` is True, lines may be folded between words."""
    texts = [cell.plain for cell in cells]
    line_width = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
    word_width = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return ColumnWidth(line_width, word_width if folds else line_width)
