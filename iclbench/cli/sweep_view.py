"""What a sweep shows while it runs: a live table on a terminal, one line per finished cell when piped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.table import Table

from iclbench.cli.terminal import err, say
from iclbench.store.cells import Store
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import KINDS, GridCell
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.plan import Plan


class View:
    """Follows a sweep; `rich` asks it what to draw, four times a second.

    Attributes:
        outcomes: what became of cells so far, by hash.
    """

    def __init__(self, plan: Plan, store: Store, slots: int, device: str = "cpu", live: bool = False) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._slots, self._live = slots, live
        self._left = {cell.hash: cell for cell in plan.todo}
        self._total = len(plan.todo)
        self._running: dict[str, float] = {}
        self._began = time.monotonic()
        estimates = Estimates(store, device)
        self._expected = {cell.hash: estimates.seconds(cell) for cell in plan.todo}
        self._seen: dict[str, list[float]] = {}
        todo = Counter(cell.kind for cell in plan.todo)
        self._counts = {kind: Counter({"to do": todo[kind]}) for kind in KINDS if todo[kind]}

    @property
    def settled(self) -> int:
        return len(self.outcomes)

    def started(self, cell: GridCell) -> None:
        """See `engine.Report`."""
        self._running[cell.hash] = time.monotonic()

    def finished(self, cell: GridCell, outcome: Outcome) -> None:
        """See `engine.Report`."""
        self.outcomes[cell.hash] = outcome
        self._running.pop(cell.hash, None)
        self._left.pop(cell.hash, None)
        self._counts[cell.kind]["to do"] -= 1
        self._counts[cell.kind][outcome.status] += 1
        if outcome.status == "done":
            self._seen.setdefault(cell.kind, []).append(outcome.seconds)
        why = f": {outcome.reason}" if outcome.reason else ""
        if not self._live:
            rest = self.time_left()
            took = f" in {duration(outcome.seconds)}" if outcome.status == "done" else ""
            left = f", {duration(rest)} left" if rest else ""
            say(f"{self.settled}/{self._total} {label(cell)} {outcome.status}{took}{why}{left}")
        elif outcome.status in ("failed", "diverged"):
            say(f"{outcome.status}: {label(cell)}{why}")
        for line in outcome.warnings:
            say(f"WARNING: {label(cell)}: {line}")

    def again(self, cell: GridCell, reason: str) -> None:
        """See `engine.Report`."""
        self._running.pop(cell.hash, None)
        say(f"once more: {label(cell)}: {reason}")

    def time_left(self) -> float | None:
        """Seconds until all is done; None: some kind of cell has never been timed."""
        total, now = 0.0, time.monotonic()
        for key, cell in self._left.items():
            seen = self._seen.get(cell.kind)
            expected = self._expected[key] or (sum(seen) / len(seen) if seen else None)
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
        doing = Table("", "", box=None, pad_edge=False, show_header=False)
        doing.columns[1].no_wrap = True  # a long name folds, never the time
        now = time.monotonic()
        for key, since in list(self._running.items()):
            if key in self._left:
                doing.add_row(label(self._left[key]), duration(now - since))
        rest = self.time_left()
        left = f"{duration(rest)} left" if rest is not None else "time left not known yet"
        done = f"{self.settled}/{self._total} cells, {duration(now - self._began)} so far, {left}"
        return Group(counts, doing, done)


@contextmanager
def view(plan: Plan, store: Store, slots: int, device: str = "cpu") -> Iterator[View]:
    """A view that is drawn while the block runs, if there is a terminal to draw on."""
    if not err.is_terminal:
        yield View(plan, store, slots, device)
        return
    shown = View(plan, store, slots, device, live=True)
    with Live(shown, console=err, refresh_per_second=4):
        yield shown


def label(cell: GridCell) -> str:
    """A cell in two or three words."""
    return f"{cell.kind} {cell.run}" if cell.config is not None else f"{cell.kind} {cell.run} of {cell.group}"


def duration(seconds: float) -> str:
    """Seconds as a person says it.

    >>> duration(4.2), duration(250.0), duration(7300.0), duration(200_000.0)
    ('4 s', '4 min', '2 h 1 min', '2 d 7 h')
    """
    minutes, hours, days = (int(seconds // unit) for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes >= 2 else f"{seconds:.0f} s"
