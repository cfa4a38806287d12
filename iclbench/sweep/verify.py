"""Are stored results what this code computes? Random finished cells, computed again and compared to the last digit;
where they differ, whether the difference matters.

Processors of different vendors, and libraries that choose their kernels by them, sum in other orders. So there is a
second verdict: no value or end of an interval of the evaluation has moved by a tenth of half its interval, which is
less than what other episodes would do. Of training curves, which have no intervals, it says nothing: what they lead to
is evaluated.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from iclbench import __version__, tables
from iclbench.core import kernels, machine
from iclbench.core.context import Context
from iclbench.core.errors import DataError, IclbenchError
from iclbench.store.cells import Store
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.executor import WorkerDiedError
from iclbench.sweep.local import LocalPool
from iclbench.sweep.pack import value_rows
from iclbench.sweep.work import set_up, work

# Seconds that workers have to end when verifying is interrupted.
_GRACE = 5.0
# Provenance: a note on a card, a new version of iclbench or another table of rates may change them without changing a
# value; rows of earlier commits lack the order and the data.
_PROVENANCE = ("card", "version", "commit", "context_order", "data", "tuned")
# Differences below this part of half an interval do not matter.
NEGLIGIBLE = 0.1
_NUMBERS = ("value", "low", "high")


@dataclass(frozen=True)
class Verified:
    """A cell that was computed again.

    Attributes:
        cell: the evaluation.
        rows: rows of `values` that were compared, those of its training among them.
        difference: the first difference; None: all are equal to the last digit.
        share: where they differ in numbers of the evaluation that have intervals, and in those of training curves,
            alone: the largest difference, in halves of the interval of its row. None where they do not, or a difference
            has no interval to be held against.
        elsewhere: in what the places where it and its training were computed first differ from this one: hardware,
            kernels, threads or libraries; differences may then be no more than rounding.
        seconds: how long computing it again took.
        of: how many are computed again.
    """

    cell: GridCell
    rows: int
    difference: str | None
    share: float | None
    elsewhere: tuple[str, ...]
    seconds: float
    of: int = 1

    @property
    def equal(self) -> bool:
        return self.difference is None

    @property
    def agrees(self) -> bool:
        """Whether all that differs is small beside the intervals, or nothing does."""
        return self.equal or (self.share is not None and self.share < NEGLIGIBLE)


def verify(cells: Sequence[GridCell], store: Store, n: int, seed: int, context: Context) -> Iterator[Verified]:
    """Compute n random finished evaluations again, each in a folder of its own, and compare their rows.

    Runs are trained again from their frozen configuration, so that weights are neither needed nor believed. Each cell
    is computed in a worker process with the kernels that its row names, as far as this processor has them.

    Args:
        cells: of a grid.
        store: where their rows are, single or packed.
        n: how many; all where there are fewer.
        seed: of the choice.
        context: device, threads and data sets to compute with; its results folder is not touched.

    Raises:
        IclbenchError: no evaluation is finished whose data set is there.
    """
    known = {cell.hash: cell for cell in cells}
    with _Workers(context.threads) as workers:
        taken = chosen(cells, store, n, seed, context)
        for cell in taken:
            found = _verified([*(known[need] for need in cell.needs), cell], store, context, workers)
            yield replace(found, of=len(taken))


def chosen(cells: Sequence[GridCell], store: Store, n: int, seed: int, context: Context) -> list[GridCell]:
    """The evaluations that `verify` computes again, with its arguments and errors."""
    finished = (cell for cell in cells if store.state(cell) == "done" or store.damaged(cell))
    done = [cell for cell in finished if cell.kind == "evaluate" and not cell.is_summary]
    there = {group for group, cell in {cell.group: cell for cell in done}.items() if _has_data(cell, context)}
    done = [cell for cell in done if cell.group in there]
    if not done:
        raise IclbenchError(f"no evaluation of this grid is finished in {store.results}: there is nothing to verify")
    return random.Random(seed).sample(sorted(done, key=lambda cell: cell.hash), min(n, len(done)))


class _Workers:
    """A worker process for each set of kernels, which a process chooses once."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pools: dict[str, LocalPool] = {}

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in self._pools.values():
            pool.stop(_GRACE)

    def work(self, cell: GridCell, context: Context, instruction_set: str) -> Outcome:
        """Do the cell with these kernels."""
        if instruction_set not in self._pools:
            self._pools[instruction_set] = LocalPool([(self._threads, None, instruction_set)], set_up)
        try:
            return self._pools[instruction_set].submit(work, cell, context).result()
        except WorkerDiedError as error:
            return Outcome("failed", str(error))


def _has_data(cell: GridCell, context: Context) -> bool:
    """Whether the data set that the cell's task needs is there, if it needs one."""
    try:
        cell.read_data(context.data_dir)
    except DataError:
        return False
    return True


def _verified(cells: Sequence[GridCell], store: Store, context: Context, workers: _Workers) -> Verified:
    """The last of the cells, computed again after those that it needs."""
    started = time.perf_counter()
    rows, difference = 0, None
    shares: list[float | None] = []
    elsewhere: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="iclbench-verify-") as folder:
        fresh = Store(Path(folder))
        for cell in cells:
            used = kernels.like(_kernels(store, cell))
            elsewhere |= dict.fromkeys(_elsewhere(store, cell, context, used))
            outcome = workers.work(cell, replace(context, results=fresh.results), used)
            if outcome.status != "done":
                difference = f"computed again it {outcome.status}: {outcome.reason}"
                shares.append(None)
                break
        for cell in [] if difference else cells:
            found = value_rows(fresh, cell)
            rows += len(found)
            if damaged := store.damaged(cell):
                difference = (
                    difference or f"{damaged} is damaged or cut short; delete it, and a sweep does its cells again"
                )
                shares.append(None)
                continue
            try:
                stored = value_rows(store, cell) if store.state(cell) == "done" else found.iloc[:0]
            except tables.TableError as error:
                difference = difference or str(error)
                shares.append(None)
                continue
            # Of packed rows those of another grid's evaluation of the same run, on other prompts, are not meant.
            stored = stored[stored["prompt_set"].isna() | stored["prompt_set"].isin(found["prompt_set"].dropna())]
            difference = difference or first_difference(stored, found)
            shares.append(share_of_interval(stored, found, judged=cell.kind != "train"))
    share = max((each for each in shares if each is not None), default=0.0) if None not in shares else None
    return Verified(
        cells[-1], rows, difference, share if difference else None, tuple(elsewhere), time.perf_counter() - started
    )


def first_difference(stored: pd.DataFrame, found: pd.DataFrame) -> str | None:
    """The first row and column in which two tables of values differ, in a line, with the largest difference of numbers;
    None: in none.

    Numbers are equal when all their digits are.
    """
    keys = tables.keys("values")
    compared = [name for name in tables.VALUES if name not in (*keys, *_PROVENANCE)]
    sides = [frame.set_index(keys)[compared] for frame in (stored, found)]
    for one, other, where in ((sides[1], sides[0], "only computed again"), (sides[0], sides[1], "only stored")):
        lonely = one.index.difference(other.index, sort=False)
        if len(lonely):
            return f"{len(lonely)} rows {where}, the first: {_place(keys, lonely[0])}"
    a, b = sides[0], sides[1].reindex(sides[0].index)
    for name in compared:
        unequal = ~(a[name].eq(b[name]).fillna(False) | (a[name].isna() & b[name].isna())).to_numpy(bool)
        if unequal.any():
            at = int(unequal.argmax())
            more = f" (and {unequal.sum() - 1} more rows)" if unequal.sum() > 1 else ""
            apart = (a[name] - b[name]).abs().max() if pd.api.types.is_numeric_dtype(a[name]) else pd.NA
            more += "" if pd.isna(apart) else f"; at most {float(apart):.1e} apart"
            return f"{name} {a[name].iloc[at]} became {b[name].iloc[at]}: {_place(keys, a.index[at])}{more}"
    return None


def share_of_interval(stored: pd.DataFrame, found: pd.DataFrame, judged: bool = True) -> float | None:
    """The largest difference of a value or of an end of its interval, in halves of the stored interval; None where
    tables differ in anything else, or in a row that has no interval. Rows that are not `judged` may differ in any
    number."""
    keys = tables.keys("values")
    a, b = (frame.set_index(keys).sort_index() for frame in (stored, found))
    if not a.index.equals(b.index):
        return None
    texts = [name for name in tables.VALUES if name not in (*keys, *_PROVENANCE, *_NUMBERS)]
    if not all((a[name].eq(b[name]).fillna(False) | (a[name].isna() & b[name].isna())).all() for name in texts):
        return None
    old, new = (frame[list(_NUMBERS)].to_numpy(float, na_value=np.nan) for frame in (a, b))
    if not np.array_equal(np.isfinite(old), np.isfinite(new)):
        return None
    moved = np.nan_to_num(np.abs(new - old)).max(1)
    half = (old[:, 2] - old[:, 1]) / 2
    if not judged or not moved.any():
        return 0.0
    at = moved > 0
    return float((moved[at] / half[at]).max()) if (half[at] > 0).all() else None


def _place(keys: Sequence[str], values: Sequence[object]) -> str:
    """Where a row stands, without what is missing."""
    return ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True) if not pd.isna(value))  # type: ignore[call-overload]


def _kernels(store: Store, cell: GridCell) -> str | None:
    """The kernels that a cell was computed with, if its row says so."""
    recorded = store.rows["kernels"].get(cell.hash)
    return None if pd.isna(recorded) else str(recorded)


def _elsewhere(store: Store, cell: GridCell, context: Context, used: str) -> tuple[str, ...]:
    """In what the place where a cell was computed differs from where it is computed again, a line each."""
    if not store.has_row(cell):
        return ()
    recorded = store.rows.loc[cell.hash]
    here = {
        "device": machine.device(context.device),
        "hardware": machine.hardware(),
        "kernels": used,
        "threads": context.threads,
        "iclbench": __version__,
        **json.loads(machine.libraries()),
    }
    there = {name: recorded[name] for name in ("device", "hardware", "kernels", "threads")}
    there |= {"iclbench": recorded["version"]}
    there |= {} if pd.isna(recorded["libraries"]) else json.loads(recorded["libraries"])
    return tuple(
        f"{name}: {there[name]} then, {here.get(name, 'none')} now"
        for name in there
        if not pd.isna(there[name]) and there[name] != here.get(name)
    )
