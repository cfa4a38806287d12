"""Verification of stored results: random finished cells are computed again and compared to the last digit.

Processors of different vendors, and libraries that choose their kernels by processor, sum in different orders. So there
is a second criterion: all values and ends of intervals of the evaluation have moved by less than a tenth of half the
interval, which is less than the effect of other episodes. It does not apply to training curves, which have no intervals
and whose results are evaluated.
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

# Seconds for workers to end after an interruption.
_GRACE = 5.0
# Columns of provenance. A note on a card, a new version of iclbench or another table of rates may change them without
# an effect on values. Rows of earlier commits lack the order and the data.
_PROVENANCE = ("card", "version", "commit", "context_order", "data", "tuned")
# Differences below this share of half an interval are negligible.
NEGLIGIBLE = 0.1
_NUMBERS = ("value", "low", "high")


@dataclass(frozen=True)
class Verified:
    """A cell that was computed again.

    Attributes:
        cell: the evaluation.
        rows: number of compared rows of `values`, including those of its training.
        difference: the first difference; None if all rows are equal to the last digit.
        share: the largest difference, in halves of the interval of its row. None if there is no difference, or if there
            are differences in anything but training curves and numbers with intervals.
        environment: differences between the first environment (of the evaluation and its training) and this one:
            hardware, kernels, threads or libraries. Differences of values may then be due to rounding.
        seconds: seconds of the second computation.
        total: number of cells that are computed again.
    """

    cell: GridCell
    rows: int
    difference: str | None
    share: float | None
    environment: tuple[str, ...]
    seconds: float
    total: int = 1

    @property
    def equal(self) -> bool:
        return self.difference is None

    @property
    def agrees(self) -> bool:
        """Whether there are no differences, or all are negligible compared with the intervals."""
        return self.equal or (self.share is not None and self.share < NEGLIGIBLE)


def verify(cells: Sequence[GridCell], store: Store, n: int, seed: int, context: Context) -> Iterator[Verified]:
    """Compute n random finished evaluations again, each in a temporary folder, and compare their rows.

    Runs are trained again from their frozen configuration, so weights are not used. Each cell is computed in a worker
    process with the kernels of its row, if this processor has them.

    Args:
        cells: cells of a grid.
        store: the store of their rows, single or packed.
        n: number of evaluations (all if there are fewer).
        seed: seed of the selection.
        context: device, threads and data sets. Its results folder is not changed.

    Raises:
        IclbenchError: no evaluation with available data is finished.
    """
    by_hash = {cell.hash: cell for cell in cells}
    with _Workers(context.threads) as workers:
        sample = sampled_cells(cells, store, n, seed, context)
        for cell in sample:
            verified = _verified([*(by_hash[need] for need in cell.needs), cell], store, context, workers)
            yield replace(verified, total=len(sample))


def sampled_cells(cells: Sequence[GridCell], store: Store, n: int, seed: int, context: Context) -> list[GridCell]:
    """The evaluations that `verify` computes again, with its arguments and errors."""
    finished = (cell for cell in cells if store.state(cell) == "done" or store.damaged_file(cell))
    done = [cell for cell in finished if cell.kind == "evaluate" and not cell.is_summary]
    available = {group for group, cell in {cell.group: cell for cell in done}.items() if _has_data(cell, context)}
    done = [cell for cell in done if cell.group in available]
    if not done:
        raise IclbenchError(f"nothing to verify: no evaluation of this grid is finished in {store.results}")
    return random.Random(seed).sample(sorted(done, key=lambda cell: cell.hash), min(n, len(done)))


class _Workers:
    """A worker process for each set of kernels, since a process cannot change its kernels."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pools: dict[str, LocalPool] = {}

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in self._pools.values():
            pool.stop(_GRACE)

    def work(self, cell: GridCell, context: Context, instruction_set: str) -> Outcome:
        """Compute a cell with these kernels."""
        if instruction_set not in self._pools:
            self._pools[instruction_set] = LocalPool([(self._threads, None, instruction_set)], set_up)
        try:
            return self._pools[instruction_set].submit(work, cell, context).result()
        except WorkerDiedError as error:
            return Outcome("failed", str(error))


def _has_data(cell: GridCell, context: Context) -> bool:
    """Whether the data set of the cell's task is available, or the task needs none."""
    try:
        cell.read_data(context.data_dir)
    except DataError:
        return False
    return True


def _verified(cells: Sequence[GridCell], store: Store, context: Context, workers: _Workers) -> Verified:
    """The last of the cells, computed again after the cells that it needs."""
    start = time.perf_counter()
    rows, difference = 0, None
    shares: list[float | None] = []
    environment: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="iclbench-verify-") as folder:
        fresh = Store(Path(folder))
        for cell in cells:
            instruction_set = kernels.like(_kernels(store, cell))
            environment |= dict.fromkeys(_environment_differences(store, cell, context, instruction_set))
            outcome = workers.work(cell, replace(context, results=fresh.results), instruction_set)
            if outcome.status != "done":
                difference = f"the second computation {outcome.status}: {outcome.reason}"
                shares.append(None)
                break
        for cell in [] if difference else cells:
            new_rows = value_rows(fresh, cell)
            rows += len(new_rows)
            if damaged := store.damaged_file(cell):
                difference = (
                    difference or f"{damaged} is damaged or incomplete; delete it, and a sweep computes its cells again"
                )
                shares.append(None)
                continue
            try:
                stored = value_rows(store, cell) if store.state(cell) == "done" else new_rows.iloc[:0]
            except tables.TableError as error:
                difference = difference or str(error)
                shares.append(None)
                continue
            # Packed rows may include another grid's evaluation of the same run on other prompts.
            stored = stored[stored["prompt_set"].isna() | stored["prompt_set"].isin(new_rows["prompt_set"].dropna())]
            difference = difference or first_difference(stored, new_rows)
            shares.append(share_of_interval(stored, new_rows, has_intervals=cell.kind != "train"))
    share = max((each for each in shares if each is not None), default=0.0) if None not in shares else None
    return Verified(
        cells[-1], rows, difference, share if difference else None, tuple(environment), time.perf_counter() - start
    )


def first_difference(stored: pd.DataFrame, computed: pd.DataFrame) -> str | None:
    """The first row and column in which two tables of values differ, in a line, with the largest difference of numbers;
    None if they are equal.

    Numbers are equal if all their digits are equal.
    """
    keys = tables.keys("values")
    columns = [name for name in tables.VALUES if name not in (*keys, *_PROVENANCE)]
    sides = [frame.set_index(keys)[columns] for frame in (stored, computed)]
    for one, other, side in ((sides[1], sides[0], "only computed again"), (sides[0], sides[1], "only stored")):
        unmatched = one.index.difference(other.index, sort=False)
        if len(unmatched):
            return f"{len(unmatched)} rows {side}, the first: {_row_name(keys, unmatched[0])}"
    a, b = sides[0], sides[1].reindex(sides[0].index)
    for name in columns:
        unequal = ~(a[name].eq(b[name]).fillna(False) | (a[name].isna() & b[name].isna())).to_numpy(bool)
        if unequal.any():
            first = int(unequal.argmax())
            more = f" (and {unequal.sum() - 1} more rows)" if unequal.sum() > 1 else ""
            distance = (a[name] - b[name]).abs().max() if pd.api.types.is_numeric_dtype(a[name]) else pd.NA
            more += "" if pd.isna(distance) else f"; at most {float(distance):.1e} apart"
            return f"{name} {a[name].iloc[first]} became {b[name].iloc[first]}: {_row_name(keys, a.index[first])}{more}"
    return None


def share_of_interval(stored: pd.DataFrame, computed: pd.DataFrame, has_intervals: bool = True) -> float | None:
    """The largest difference of a value or of an end of its interval, in halves of the stored interval; None if the
    tables differ in anything else, or in a row without an interval. If the rows have no intervals, their numbers may
    differ."""
    keys = tables.keys("values")
    a, b = (frame.set_index(keys).sort_index() for frame in (stored, computed))
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
    if not has_intervals or not moved.any():
        return 0.0
    is_moved = moved > 0
    return float((moved[is_moved] / half[is_moved]).max()) if (half[is_moved] > 0).all() else None


def _row_name(keys: Sequence[str], values: Sequence[object]) -> str:
    """The keys of a row, without missing values."""
    return ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True) if not pd.isna(value))  # type: ignore[call-overload]


def _kernels(store: Store, cell: GridCell) -> str | None:
    """The kernels in a cell's row; None if it names none."""
    recorded = store.rows["kernels"].get(cell.hash)
    return None if pd.isna(recorded) else str(recorded)


def _environment_differences(store: Store, cell: GridCell, context: Context, instruction_set: str) -> tuple[str, ...]:
    """Differences between the recorded environment of a cell and the current one, a line each."""
    if not store.has_row(cell):
        return ()
    recorded = store.rows.loc[cell.hash]
    current = {
        "device": machine.device(context.device),
        "hardware": machine.hardware(),
        "kernels": instruction_set,
        "threads": context.threads,
        "iclbench": __version__,
        **json.loads(machine.libraries()),
    }
    first = {name: recorded[name] for name in ("device", "hardware", "kernels", "threads")}
    first |= {"iclbench": recorded["version"]}
    first |= {} if pd.isna(recorded["libraries"]) else json.loads(recorded["libraries"])
    return tuple(
        f"{name}: {first[name]} then, {current.get(name, 'none')} now"
        for name in first
        if not pd.isna(first[name]) and first[name] != current.get(name)
    )
