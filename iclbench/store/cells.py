"""The cells of a results folder, which are recorded as rows of the table `cells`.

When a cell of a grid has been computed, its row is written to `RESULTS/cells/TASK-PRESET/RUN.KIND-HASH.cells.parquet`.
A cell is done if all files that its row names are intact, and if the metrics in the row of an evaluation include all
metrics that the current code computes (`iclbench.store.state`). If a file is deleted, the state of its cells becomes
`todo`. In packed results, one file has the rows of many cells.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from iclbench import __version__, tables
from iclbench.core import kernels, machine
from iclbench.core.context import Context
from iclbench.store.outcome import Outcome
from iclbench.store.runs import write_errors
from iclbench.store.shipped import FOLDER as REFERENCE
from iclbench.store.state import State, is_current, is_intact

if TYPE_CHECKING:
    from iclbench.sweep.cells import GridCell

log = logging.getLogger("iclbench")


class CellStore:
    """The cells of a results folder.

    Args:
        results: results folder. Its tables are read only once, so later changes are not seen.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self._readable: dict[str, bool] = {}
        self._tables: dict[Path, pd.DataFrame] = {}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of the table `cells`, one for each cell. If a cell has several rows, a finished row with intact
        files is preferred to a failed row, an unpacked row to a packed row, and the reference results to other packed
        results."""
        # Folders are read one by one, since several may have a row for the same cell.
        folders = [path for path in self.results.glob("*") if path.is_dir()]
        folders.sort(key=lambda path: (path.name not in tables.COMMAND_FOLDERS, path.name != REFERENCE, path))
        frame = pd.concat([tables.read_all("cells", folder) for folder in folders] or [tables.frame("cells", [])])
        intact = [self._are_intact(cell, files) for cell, files in zip(frame["cell"], frame["files"], strict=True)]
        frame = frame.assign(is_intact=intact).astype({"is_intact": bool})
        # A failed row may name no files and is then intact, so it needs a rank after finished rows.
        rank = frame["status"].eq("failed").astype(int).where(frame["is_intact"], 2)
        frame = frame.assign(rank=rank).sort_values("rank", kind="stable").drop(columns="rank")
        return frame.drop_duplicates("cell").sort_values("cell").set_index("cell")

    @cached_property
    def _records(self) -> dict[Hashable, dict[Hashable, Any]]:
        """The status and metrics in the rows whose files are all intact, by cell."""
        intact = self.rows[self.rows["is_intact"]]
        return intact[["status", "metrics"]].to_dict("index")

    @cached_property
    def _incomplete_cells(self) -> frozenset[str]:
        """The cells that were done but whose files are missing or damaged."""
        return frozenset(self.rows.index[self.rows["status"].eq("done") & ~self.rows["is_intact"]])

    @cached_property
    def _files(self) -> dict[str, tuple[str, ...]]:
        intact = self.rows[self.rows["is_intact"]]
        return {str(cell): file_names(files) for cell, files in intact["files"].items()}

    def state(self, cell: GridCell) -> State:
        """Return the state of a cell. It is `todo` if files or metrics are missing."""
        if cell.reason:
            return "skipped"
        record = self._records.get(cell.hash)
        if record is None:
            return "todo"
        question = cell.task_config.question if computes_scores(cell) else None
        # The row was found by the identity of the cell, so only its metrics can be outdated.
        if record["status"] == "done" and not is_current(record, {}, question):
            return "todo"
        return record["status"]

    def has_row(self, cell: GridCell) -> bool:
        """Whether the cell has a row and all files that it names."""
        return cell.hash in self._records

    def files(self, cell: GridCell) -> tuple[Path, ...]:
        """Return the files with the results of a finished, diverged or failed cell; empty for other cells."""
        is_finished = self.state(cell) in ("done", "diverged", "failed")
        return tuple(self.results / file for file in self._files[cell.hash]) if is_finished else ()

    def is_packed(self, cell: str) -> bool:
        """Whether the results of the cell with this hash are in packed files."""
        return any(tables.is_packed(self.results / file, self.results) for file in self._files.get(cell, ()))

    def has_episode_scores(self, cell: GridCell) -> bool:
        """Whether an evaluation has the scores of single episodes that a comparison with an oracle needs.

        These are the likelihoods on all prompt sets on which an oracle has likelihoods, or the squared errors if the
        contestant has no likelihoods.
        """
        values = self._rows_of("values", cell)
        values = values[
            values["status"].eq("ok") & values["axis"].isna() & ~values["metric"].isin(tables.COMPARISON_METRICS)
        ]
        is_likelihood = values["metric"].isin(tables.LIKELIHOODS)
        oracle_prompts = set(values.loc[is_likelihood & values["kind"].eq("oracle"), "prompt_set"])
        is_of_cell = values["run"].eq(cell.run) & values["prompt_set"].isin(oracle_prompts)
        is_error_without_likelihood = values["metric"].eq("squared_error") & ~values["prompt_set"].isin(
            values.loc[is_of_cell & is_likelihood, "prompt_set"]
        )
        errors = self._rows_of("errors", cell)
        keys = pd.MultiIndex.from_frame(errors.loc[errors["run"].eq(cell.run), ["prompt_set", "metric"]])
        is_required = is_of_cell & (is_likelihood | is_error_without_likelihood)
        required_keys = pd.MultiIndex.from_frame(values.loc[is_required, ["prompt_set", "metric"]])
        return len(required_keys) > 0 and bool(required_keys.isin(keys).all())

    def _rows_of(self, table: tables.TableName, cell: GridCell) -> pd.DataFrame:
        """Return the rows of one table from all files of a cell."""
        paths = [path for path in self.files(cell) if path.name.endswith(f"{table}.parquet")]
        return tables.union(table, [self._read(table, path) for path in paths])

    def _read(self, table: tables.TableName, path: Path) -> pd.DataFrame:
        if path not in self._tables:
            self._tables[path] = tables.read(table, path)
        return self._tables[path]

    def _are_intact(self, cell: str, files: Any) -> bool:
        try:
            return all(self._is_readable(file) for file in file_names(files))
        except ValueError:
            log.warning("cell %s: its row does not name files of the folder, so it will be recomputed", cell)
            return False

    def _is_readable(self, file: str) -> bool:
        if file not in self._readable:
            path = self.results / file
            self._readable[file] = is_intact(path)
            if not self._readable[file] and path.is_file():
                log.warning("%s is damaged, so its cells will be recomputed; restore it to avoid this", path)
        return self._readable[file]

    def damaged_file(self, cell: GridCell) -> Path | None:
        """Return the first damaged file of a finished cell, or None. A missing file does not count as damaged."""
        if cell.hash not in self._incomplete_cells:
            return None
        try:
            files = file_names(self.rows.loc[cell.hash, "files"])
        except ValueError:
            return None
        unreadable = (self.results / file for file in files if not self._is_readable(file))
        return next((path for path in unreadable if path.is_file()), None)

    def record(self, cell: GridCell, outcome: Outcome, context: Context) -> None:
        """Write the row of a cell."""
        record(self.results, cell, outcome, context)


def record(results: Path, cell: GridCell, outcome: Outcome, context: Context) -> None:
    """Write the row of a cell. Each row has its own file, so that several processes can write at the same time."""
    path = results / "cells" / cell.group / f"{cell.run}.{cell.kind}-{cell.hash}.cells.parquet"
    with write_errors(results):
        tables.write("cells", [cell_row(cell, outcome, context)], path, {})


def cell_row(cell: GridCell, outcome: Outcome, context: Context) -> dict[str, object]:
    """Return the row of a cell in the table `cells`."""
    columns: dict[str, object] = {
        "cell": cell.hash,
        "kind": cell.kind,
        "run": cell.run,
        "task": cell.task,
        "contestant": cell.contestant,
        "preset": cell.preset,
        "seed": cell.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "version": __version__,
    }
    if outcome.status == "skipped":
        return columns
    return columns | {
        "files": json.dumps(sorted(outcome.files)),
        "metrics": _metrics(context.results, outcome.files) if computes_scores(cell) else None,
        "seconds": outcome.seconds,
        "device": machine.device_label(context.device),
        "hardware": machine.hardware(),
        "kernels": kernels.current(),
        "threads": context.threads,
        "libraries": machine.libraries(),
    }


def computes_scores(cell: GridCell) -> bool:
    """Whether a cell computes scores of predictions: an evaluation that is not a summary."""
    return cell.work == "evaluate" and not cell.is_summary


def _metrics(results: Path, files: Sequence[str]) -> str | None:
    """Return the metrics that the metadata of an evaluation's tables list; None if they list none."""
    metric_lists = [
        tables.metadata(results / file).get("metrics", "") for file in files if file.endswith("values.parquet")
    ]
    return " ".join(sorted({name for metric_list in metric_lists for name in metric_list.split()})) or None


def file_names(files: Any) -> tuple[str, ...]:
    """Return the file names in the column `files` of a row, relative to the results folder.

    Raises:
        ValueError: the value is not a JSON list of names of files in the results folder.
    """
    names = [] if pd.isna(files) else json.loads(str(files))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{files} is not a list of names")
    if any(name.startswith("/") or not {"..", ""}.isdisjoint(re.split(r"[/\\]", name)) for name in names):
        raise ValueError(f"{files} has names of files outside the results folder")
    return tuple(names)


def relative_paths(results: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the paths of files relative to the results folder, as rows store them."""
    return tuple(path.relative_to(results).as_posix() for path in files)
