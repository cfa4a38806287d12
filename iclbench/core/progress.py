"""A progress bar for a known number of steps, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from iclbench.core.formats import printable

# Function that is called with the number of finished steps and the text next to the bar.
Update = Callable[[int, str], None]


class PrintableConsole(Console):
    """A console that escapes control characters in names and texts of the user."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


@contextmanager
def step_bar(console: Console, label: str, total: int, finished_steps: int = 0) -> Iterator[Update]:
    """Draw a progress bar while the block runs.

    Args:
        console: a terminal.
        label: text before the bar, without markup.
        total: number of steps.
        finished_steps: number of steps that are already finished.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(label, total=total, completed=finished_steps, text="")

        def move(step: int, text: str = "") -> None:
            progress.update(bar, completed=step, text=text)

        yield move
