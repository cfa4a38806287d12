"""What a person sees: results on stdout, progress on stderr; bars on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# A pipe has no width of its own: nothing should wrap there.
out = Console(highlight=False, width=None if sys.stdout and sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False)

# Seconds between two plain progress lines.
_EVERY = 10.0


@contextmanager
def step_bar(label: str, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
    """A bar over a known number of steps; yields a function to be called with the steps done and a short text."""
    if err.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
        )  # fmt: skip
        with Progress(*columns, console=err) as progress:
            bar = progress.add_task(label, total=total, completed=done, text="")

            def move(step: int, text: str = "") -> None:
                progress.update(bar, completed=step, text=text)

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
        err.print(f"{label} {step}/{total} {text}{left}", soft_wrap=True)

    yield line


def say(text: str) -> None:
    """A line of progress."""
    err.print(text, soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> None:
    """A result table on stdout; its title may be wider than it is."""
    if title:
        out.print(title, style="table.title", soft_wrap=True)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        shown.add_column(
            column,
            justify="right" if index in numeric else "left",
            overflow="fold",
            no_wrap=index == 0 or index in numeric,
        )
    for row in rows:
        shown.add_row(*row)
    out.print(shown)
