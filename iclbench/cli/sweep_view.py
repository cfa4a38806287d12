"""Show the progress of a sweep: a live table on a terminal, or one line per finished cell in a pipe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.table import Table

from iclbench.cli.terminal import err, say
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import KINDS, GridCell
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.plan import Plan


class View:
    """An observer of a sweep, drawn by `rich` four times a second on a terminal.

    Attributes:
        outcomes: outcomes of all settled cells, by hash.
    """

    def __init__(self, plan: Plan, store: CellStore, slots: int, device: str = "cpu", live: bool = False) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._slots, self._live = slots, live
        self._unsettled = {cell.hash: cell for cell in plan.todo}
        self._total = len(plan.todo)
        self._running: dict[str, float] = {}
        self._start = time.monotonic()
        estimates = Estimates(store, device)
        self._expected = {cell.hash: estimates.seconds(cell) for cell in plan.todo}
        self._durations: dict[str, list[float]] = {}
        todo = Counter(cell.kind for cell in plan.todo)
        self._counts = {kind: Counter({"to do": todo[kind]}) for kind in KINDS if todo[kind]}

    @property
    def settled_count(self) -> int:
        return len(self.outcomes)

    def on_start(self, cell: GridCell) -> None:
        """See `engine.SweepObserver`."""
        self._running[cell.hash] = time.monotonic()

    def on_finish(self, cell: GridCell, outcome: Outcome) -> None:
        """See `engine.SweepObserver`."""
        self.outcomes[cell.hash] = outcome
        self._running.pop(cell.hash, None)
        self._unsettled.pop(cell.hash, None)
        self._counts[cell.kind]["to do"] -= 1
        self._counts[cell.kind][outcome.status] += 1
        if outcome.status == "done":
            self._durations.setdefault(cell.kind, []).append(outcome.seconds)
        reason = f": {outcome.reason}" if outcome.reason else ""
        if not self._live:
            remaining_seconds = self.remaining_seconds()
            time_used = f" in {duration_text(outcome.seconds)}" if outcome.status == "done" else ""
            remaining = f", {duration_text(remaining_seconds)} left" if remaining_seconds else ""
            say(f"{self.settled_count}/{self._total} {cell_label(cell)} {outcome.status}{time_used}{reason}{remaining}")
        elif outcome.status in ("failed", "diverged"):
            say(f"{outcome.status}: {cell_label(cell)}{reason}")
        for line in outcome.warnings:
            say(f"WARNING: {cell_label(cell)}: {line}")

    def on_retry(self, cell: GridCell, reason: str) -> None:
        """See `engine.SweepObserver`."""
        self._running.pop(cell.hash, None)
        say(f"trying again: {cell_label(cell)}: {reason}")

    def remaining_seconds(self) -> float | None:
        """Return the expected seconds until all cells are settled; None if the time of a cell cannot be estimated."""
        total, now = 0.0, time.monotonic()
        for key, cell in self._unsettled.items():
            durations = self._durations.get(cell.kind)
            expected = self._expected[key] or (sum(durations) / len(durations) if durations else None)
            if expected is None:
                return None
            total += max(0.0, expected - (now - self._running.get(key, now)))
        return total / self._slots

    def __rich__(self) -> Group:
        counts = Table(box=None, pad_edge=False, header_style="bold")
        states = ["done", "failed", "diverged", "skipped", "to do"]
        if not any(count["diverged"] for count in self._counts.values()):
            states.remove("diverged")
        for column in ("cells", *states):
            counts.add_column(column, justify="left" if column == "cells" else "right", no_wrap=True)
        for kind, count in self._counts.items():
            counts.add_row(kind, *(str(count[status]) for status in states))
        running = Table("", "", box=None, pad_edge=False, show_header=False)
        running.columns[1].no_wrap = True  # fold long names, but not the time
        now = time.monotonic()
        for key, start_time in list(self._running.items()):
            if key in self._unsettled:
                running.add_row(cell_label(self._unsettled[key]), duration_text(now - start_time))
        remaining_seconds = self.remaining_seconds()
        remaining = (
            "remaining time unknown" if remaining_seconds is None else f"{duration_text(remaining_seconds)} left"
        )
        summary = f"{self.settled_count}/{self._total} cells, {duration_text(now - self._start)} so far, {remaining}"
        return Group(counts, running, summary)


@contextmanager
def view(plan: Plan, store: CellStore, slots: int, device: str = "cpu") -> Iterator[View]:
    """Create a view of a sweep. Within the block, it is drawn on stderr if stderr is a terminal."""
    if not err.is_terminal:
        yield View(plan, store, slots, device)
        return
    live_view = View(plan, store, slots, device, live=True)
    with Live(live_view, console=err, refresh_per_second=4):
        yield live_view


def cell_label(cell: GridCell) -> str:
    """Return a short name for a cell."""
    return f"{cell.kind} {cell.run}" if cell.config is not None else f"{cell.kind} {cell.run} of {cell.group}"


def duration_text(seconds: float) -> str:
    """Format a number of seconds in readable units.

    >>> duration_text(4.2), duration_text(250.0), duration_text(7300.0), duration_text(200_000.0)
    ('4 s', '4 min', '2 h 1 min', '2 d 7 h')
    """
    minutes, hours, days = (int(seconds // unit) for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes >= 2 else f"{seconds:.0f} s"
