"""A bar over a known number of steps, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Called with the number of steps done and what is to be said beside it.
Update = Callable[[int, str], None]


@contextmanager
def step_bar(console: Console, label: str, total: int, done: int = 0) -> Iterator[Update]:
    """Draw a bar while the block runs.

    Args:
        console: a terminal.
        label: what stands before it, literally.
        total: number of steps.
        done: steps that are done already.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(label, total=total, completed=done, text="")

        def move(step: int, text: str = "") -> None:
            progress.update(bar, completed=step, text=text)

        yield move
