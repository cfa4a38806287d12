"""Verification of stored results: random finished cells are recomputed and compared to the last digit.

Different processors, and libraries that choose their kernels by processor, sum numbers in different orders. A second
criterion therefore allows small differences: each value of an evaluation, and each end of its interval, may differ by
less than a tenth of the half-width of the interval. This is less than the effect of sampling other episodes. Training
curves have no intervals, so their values may differ by less than a tenth of the standard deviation of the curve.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from iclbench import __version__, tables
from iclbench.core import kernels, machine
from iclbench.core.context import Context
from iclbench.core.errors import DataError, IclbenchError
from iclbench.core.formats import plural, seconds
from iclbench.core.processes import kill_session, lead_session
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.executor import WorkerDiedError
from iclbench.sweep.local import LocalPool
from iclbench.sweep.pack import value_rows
from iclbench.sweep.work import set_up, work

# Columns of provenance, which are not compared: a new note on a card, version of iclbench or table of learning rates
# may change them although the values are the same.
_PROVENANCE = ("card", "version", "commit", "context_order", "data", "tuned")
# Differences that are smaller than this share of the half-width of the interval are negligible.
NEGLIGIBLE = 0.1
_NUMBERS = ("value", "low", "high")


@dataclass(frozen=True)
class VerifiedCell:
    """A stored cell that was recomputed.

    Attributes:
        cell: the evaluation.
        rows: number of compared rows of `values`, including the rows of the training run.
        difference: the first difference; None if all rows are equal to the last digit.
        share: the largest difference, as a share of the half-width of the interval of its row or, for training curves,
            of the standard deviation of the curve. It is None if nothing differs, or if anything else differs.
        environment: differences in hardware, kernels, threads or libraries between the environment of the stored cells
            (the evaluation and its training) and the current one. If there are any, values may differ by rounding.
        seconds: seconds that the recomputation took.
        total: number of cells that `verify` recomputes in total.
    """

    cell: GridCell
    rows: int
    difference: str | None
    share: float | None
    environment: tuple[str, ...]
    seconds: float
    total: int = 1

    @property
    def is_equal(self) -> bool:
        return self.difference is None

    @property
    def agrees(self) -> bool:
        """Whether the rows are equal, or all differences are negligible compared with the intervals."""
        return self.is_equal or (self.share is not None and self.share < NEGLIGIBLE)


def verify(
    cells: Sequence[GridCell],
    store: CellStore,
    n: int,
    seed: int,
    context: Context,
    workers: Workers | None = None,
) -> Iterator[VerifiedCell]:
    """Recompute n random finished evaluations, each in a temporary folder, and compare their rows.

    Stored weights are not used: runs are trained again from their frozen configuration. Each cell is computed in a
    worker process with the CPU kernels that its row names, if this processor supports them.

    Args:
        cells: cells of a grid.
        store: the store of their rows, which may be packed.
        n: number of evaluations. If fewer are finished, all of them are recomputed.
        seed: seed of the selection.
        context: device, threads and data sets. Its results folder is not changed.
        workers: the worker processes (default: new ones, without a time limit).

    Raises:
        IclbenchError: no finished evaluation has available data.
    """
    by_hash = {cell.hash: cell for cell in cells}
    with Workers(context.threads) if workers is None else nullcontext(workers) as open_workers:
        sample = sample_cells(cells, store, n, seed, context)
        for cell in sample:
            verified = verify_cells([*(by_hash[need] for need in cell.needs), cell], store, context, open_workers)
            yield replace(verified, total=len(sample))


def sample_cells(cells: Sequence[GridCell], store: CellStore, n: int, seed: int, context: Context) -> list[GridCell]:
    """Draw the evaluations that `verify` recomputes. Arguments and errors are those of `verify`."""
    finished_cells = (cell for cell in cells if store.state(cell) == "done" or store.damaged_file(cell))
    evaluations = [cell for cell in finished_cells if cell.kind == "evaluate" and not cell.is_summary]
    one_of_group = {cell.group: cell for cell in evaluations}
    available_groups = {group for group, cell in one_of_group.items() if _has_data(cell, context)}
    evaluations = [cell for cell in evaluations if cell.group in available_groups]
    if not evaluations:
        raise IclbenchError(
            f"nothing to verify: no evaluation of this grid is finished in {store.results}", code="nothing-to-do"
        )
    return random.Random(seed).sample(sorted(evaluations, key=lambda cell: cell.hash), min(n, len(evaluations)))


class Workers:
    """Worker processes, one for each instruction set, since a process cannot change its CPU kernels.

    At the end of the block, and after a cell that reaches the time limit, the processes are killed together with all
    processes that they started.

    Args:
        threads: number of torch threads of each process.
        max_seconds: time limit for a cell (default: no limit).
    """

    def __init__(self, threads: int, max_seconds: float | None = None) -> None:
        self._threads, self._max_seconds = threads, max_seconds
        self._pools: dict[str, LocalPool] = {}
        self._processes: dict[str, int] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for instruction_set in list(self._pools):
            self._end(instruction_set)

    def work(self, cell: GridCell, context: Context, instruction_set: str) -> Outcome:
        """Compute a cell in the worker process with this instruction set."""
        try:
            return self._pool(instruction_set).submit(work, cell, context).result(self._max_seconds)
        except TimeoutError:
            self._end(instruction_set)
            return Outcome("failed", f"it took longer than {seconds(self._max_seconds or 0)}")
        except WorkerDiedError as error:
            self._end(instruction_set)
            return Outcome("failed", str(error))

    def _pool(self, instruction_set: str) -> LocalPool:
        if instruction_set not in self._pools:
            pool = self._pools[instruction_set] = LocalPool([(self._threads, None, instruction_set)], _set_up)
            self._processes[instruction_set] = pool.submit(os.getpid).result()
        return self._pools[instruction_set]

    def _end(self, instruction_set: str) -> None:
        # A process that the worker started may hold the worker's pipe open, on which the pool waits.
        if process := self._processes.pop(instruction_set, None):
            kill_session(process)
        self._pools.pop(instruction_set).stop(0)


def _set_up(threads: int, visible_gpu: str | None, instruction_set: str) -> None:
    lead_session()
    set_up(threads, visible_gpu, instruction_set)


def _has_data(cell: GridCell, context: Context) -> bool:
    """Whether the data set of the cell's task is available or not needed."""
    try:
        cell.read_data(context.data_dir)
    except DataError:
        return False
    return True


def verify_cells(
    cells: Sequence[GridCell], store: CellStore, context: Context, workers: Workers, results: Path | None = None
) -> VerifiedCell:
    """Recompute cells, the last of which needs the others, and compare their rows with the stored ones.

    The recomputed cells are in the folder `results` (default: a temporary folder).
    """
    start = time.perf_counter()
    rows, difference = 0, None
    shares: list[float | None] = []
    environment: dict[str, None] = {}
    temporary = tempfile.TemporaryDirectory(prefix="iclbench-verify-") if results is None else nullcontext(str(results))
    with temporary as folder:
        new_store = CellStore(Path(folder))
        for cell in cells:
            instruction_set = recorded_kernels(store, cell)
            environment |= dict.fromkeys(environment_differences(store, cell, context, instruction_set))
            outcome = workers.work(cell, replace(context, results=new_store.results), instruction_set)
            if outcome.status != "done":
                difference = f"the recomputation {outcome.status}: {outcome.reason}"
                shares.append(None)
                break
        for cell in [] if difference else cells:
            new_rows = value_rows(new_store, cell)
            rows += len(new_rows)
            if damaged_path := store.damaged_file(cell):
                difference = (
                    difference
                    or f"{damaged_path} is damaged or incomplete; delete it, and a sweep recomputes its cells"
                )
                shares.append(None)
                continue
            try:
                stored_rows = value_rows(store, cell) if store.state(cell) == "done" else new_rows.iloc[:0]
            except tables.TableError as error:
                difference = difference or str(error)
                shares.append(None)
                continue
            # Packed rows may include evaluations of the same run on the prompts of another grid. They are not compared.
            prompt_sets = new_rows["prompt_set"].dropna()
            stored_rows = stored_rows[stored_rows["prompt_set"].isna() | stored_rows["prompt_set"].isin(prompt_sets)]
            if cell_difference := first_difference(stored_rows, new_rows):
                difference = difference or cell_difference
                share_of = share_of_spread if cell.kind == "train" else share_of_interval
                shares.append(share_of(stored_rows, new_rows))
    share = None if None in shares else max((each for each in shares if each is not None), default=0.0)
    return VerifiedCell(
        cells[-1], rows, difference, share if difference else None, tuple(environment), time.perf_counter() - start
    )


def first_difference(
    stored: pd.DataFrame,
    computed: pd.DataFrame,
    table: tables.TableName = "values",
    ignored: Collection[str] = _PROVENANCE,
) -> str | None:
    """Compare the rows of two tables. Return None if they are equal, and otherwise one line with the first row and
    column in which they differ, and the largest difference of numbers in this column.

    Numbers are equal if all their digits are equal. Columns in `ignored` are not compared.
    """
    keys = tables.key_columns(table)
    columns = [name for name in tables.SCHEMAS[table] if name not in (*keys, *ignored)]
    a, b = stored.reset_index(drop=True), computed.reset_index(drop=True)
    if not _have_equal_keys(a, b, keys):
        left, right = (pd.MultiIndex.from_frame(frame[keys]) for frame in (a, b))
        for unmatched, side in (
            (right.difference(left, sort=False), "only recomputed"),
            (left.difference(right, sort=False), "only stored"),
        ):
            if len(unmatched):
                return f"{plural(len(unmatched), 'row')} {side}, the first: {_row_name(keys, unmatched[0])}"
        b = b.iloc[right.get_indexer(left)].reset_index(drop=True)
    for name in columns:
        unequal = ~_are_equal(a[name], b[name])
        if unequal.any():
            row = int(unequal.argmax())
            more = f" (and {unequal.sum() - 1} more rows)" if unequal.sum() > 1 else ""
            is_number = pd.api.types.is_numeric_dtype(a[name]) and not pd.api.types.is_bool_dtype(a[name])
            distance = (a[name] - b[name]).abs().max() if is_number else pd.NA
            more += "" if pd.isna(distance) else f"; at most {float(distance):.1e} apart"
            old, new = (tables.short_name(frame[name].iloc[row]) for frame in (a, b))
            return f"{name} {old} became {new}: {_row_name(keys, a.iloc[[row]].set_index(keys).index[0])}{more}"
    return None


def _are_equal(a: pd.Series, b: pd.Series) -> np.ndarray:
    """Return a mask of the equal values of two columns. Missing values are equal."""
    return (a.eq(b).fillna(False) | (a.isna() & b.isna())).to_numpy(bool)


def _have_equal_keys(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> bool:
    """Whether two tables have the same rows in the same order."""
    return len(a) == len(b) and all(_are_equal(a[key], b[key]).all() for key in keys)


def share_of_interval(
    stored: pd.DataFrame, computed: pd.DataFrame, ignored: Collection[str] = _PROVENANCE
) -> float | None:
    """Return the largest difference of a value, or of an end of its interval, as a share of the stored half-width.

    Return None if the tables differ in a column that is not in `ignored`, or in a row without an interval.
    """
    if (aligned := aligned_numbers("values", stored, computed, ignored)) is None:
        return None
    _, old, new = aligned
    return _largest_share(old, new, (old[:, 2] - old[:, 1]) / 2)


def share_of_spread(
    stored: pd.DataFrame,
    computed: pd.DataFrame,
    table: tables.TableName = "values",
    ignored: Collection[str] = _PROVENANCE,
) -> float | None:
    """Return the largest difference of a number, as a share of the standard deviation of the computed values of the
    same training curve or of the same figure.

    Return None if the tables differ in a column that is not in `ignored`, or where the values do not vary.
    """
    if (aligned := aligned_numbers(table, stored, computed, ignored)) is None:
        return None
    rows, old, new = aligned
    by = [key for key in tables.key_columns(table) if key not in ("axis_value", "set", "point")]
    spread = rows.groupby(by, dropna=False)["value"].transform(lambda column: column.std(ddof=0))
    return _largest_share(old, new, spread.to_numpy(float, na_value=np.nan))


def aligned_numbers(
    table: tables.TableName, stored: pd.DataFrame, computed: pd.DataFrame, ignored: Collection[str] = _PROVENANCE
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray] | None:
    """Return the rows of the computed table, and the measured numbers of the stored and of the computed table in the
    same order; None if the tables differ in their keys, in a column that is not in `ignored`, or in which numbers are
    missing or infinite."""
    keys, schema = tables.key_columns(table), tables.SCHEMAS[table]
    if (frames := _in_same_order(table, stored, computed)) is None:
        return None
    a, b = frames
    numbers = [name for name in _NUMBERS if name in schema]
    texts = [name for name in schema if name not in (*keys, *ignored, *numbers)]
    if not all(_are_equal(a[name], b[name]).all() for name in texts):
        return None
    old, new = (frame[numbers].to_numpy(float, na_value=np.nan) for frame in (a, b))
    # Infinite numbers must be equal.
    old_ends, new_ends = (np.where(np.isfinite(side), 0.0, side) for side in (old, new))
    return (b, old, new) if np.array_equal(old_ends, new_ends, equal_nan=True) else None


def _in_same_order(
    table: tables.TableName, stored: pd.DataFrame, computed: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return both tables with their rows in the same order; None if they have different rows."""
    keys = tables.key_columns(table)
    a, b = stored.reset_index(drop=True), computed.reset_index(drop=True)
    if not _have_equal_keys(a, b, keys):
        a, b = (frame.sort_values(keys, ignore_index=True) for frame in (a, b))
    return (a, b) if _have_equal_keys(a, b, keys) else None


def _largest_share(old: np.ndarray, new: np.ndarray, scale: np.ndarray) -> float | None:
    """Return the largest difference in a row, as a share of the scale of the row; None if a row with a difference has
    no positive scale."""
    with np.errstate(invalid="ignore"):  # equal infinite numbers
        distance = np.nan_to_num(np.abs(new - old)).max(1)
    is_changed = distance > 0
    if not is_changed.any():
        return 0.0
    return float((distance[is_changed] / scale[is_changed]).max()) if (scale[is_changed] > 0).all() else None


def _row_name(keys: Sequence[str], values: Sequence[object]) -> str:
    """Describe a row by its keys, without missing values."""
    pairs = zip(keys, values, strict=True)
    return ", ".join(f"{key} {tables.short_name(value)}" for key, value in pairs if not pd.isna(value))  # type: ignore[call-overload]


def recorded_kernels(store: CellStore, cell: GridCell) -> str:
    """Return the kernels that are recorded in a cell's row, or the closest ones that this processor supports."""
    recorded = store.rows["kernels"].get(cell.hash)
    return kernels.closest(None if pd.isna(recorded) else str(recorded))


def environment_differences(
    store: CellStore, cell: GridCell, context: Context, instruction_set: str
) -> tuple[str, ...]:
    """Return the differences between the recorded environment of a cell and the current one, one line for each."""
    if not store.has_row(cell):
        return ()
    recorded = store.rows.loc[cell.hash]
    current_values = {
        "device": machine.device_label(context.device),
        "hardware": machine.hardware(),
        "kernels": instruction_set,
        "threads": context.threads,
        "iclbench": __version__,
        **json.loads(machine.libraries()),
    }
    stored_values = {name: recorded[name] for name in ("device", "hardware", "kernels", "threads")}
    stored_values |= {"iclbench": recorded["version"]}
    if not pd.isna(recorded["libraries"]):
        try:
            libraries = dict(json.loads(recorded["libraries"]))
            stored_values |= {str(name): str(version) for name, version in libraries.items()}
        except (ValueError, TypeError):
            text = tables.short_name(recorded["libraries"])
            raise DataError(f"cell '{cell.run}': libraries '{text}' are not an object", code="bad-data") from None
    return tuple(
        f"{name}: {tables.short_name(value, 'hardware')} then, {current_values.get(name, 'none')} now"
        for name, value in stored_values.items()
        if not pd.isna(value) and value != current_values.get(name)
    )
