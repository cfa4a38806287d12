"""The cells of a results folder: rows of the table `cells` and the files that they name.

Every cell of a grid leaves a row, `RESULTS/cells/TASK-PRESET/RUN.KIND-HASH.cells.parquet`. A cell is done as long as
every file that its row names is intact, and an evaluation as long as it has every metric that today's code computes. A
deleted file makes exactly its own cells to do. Packed results hold the rows of many cells in few files and are
read in the same way.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from iclbench import __version__, tables
from iclbench.core import kernels, machine
from iclbench.core.context import Context
from iclbench.store.outcome import Outcome
from iclbench.store.runs import writing
from iclbench.store.state import State, is_intact

if TYPE_CHECKING:
    from iclbench.sweep.cells import GridCell

log = logging.getLogger("iclbench")


class Store:
    """The cells that a results folder knows of.

    Args:
        results: results folder; what it holds is read once.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self._readable: dict[str, bool] = {}
        self._tables: dict[Path, pd.DataFrame] = {}
        self._metrics: dict[str, pd.DataFrame] = {}
        self._lacking: dict[str, set[str]] = {}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """All rows of the table `cells`, by cell: of several rows of one cell one that came to an end and whose files
        are all there, else one that failed; of two of these own sweeps before reference results."""
        # Folder by folder: own rows come before packed ones, and each may have a row for the same cell.
        folders = [path for path in self.results.glob("*") if path.is_dir()]
        folders.sort(key=lambda path: (path.name not in tables.COMMAND_FOLDERS, path))
        frame = pd.concat([tables.read_all("cells", folder) for folder in folders] or [tables.frame("cells", [])])
        intact = [self._are_intact(cell, files) for cell, files in zip(frame["cell"], frame["files"], strict=True)]
        frame = frame.assign(there=intact).astype({"there": bool})
        # A failed row names no files: none are missing, and what another row found counts all the same.
        rank = frame["status"].eq("failed").astype(int).where(frame["there"], 2)
        frame = frame.assign(rank=rank).sort_values("rank", kind="stable").drop(columns="rank")
        return frame.drop_duplicates("cell").sort_values("cell").set_index("cell")

    @cached_property
    def _states(self) -> dict[str, State]:
        """The state of every cell that has a row and all files that it names."""
        intact = self.rows[self.rows["there"]]
        return dict(zip(intact.index, intact["status"], strict=True))

    @cached_property
    def _gone(self) -> frozenset[str]:
        """Cells that were done, and whose files are not all there."""
        return frozenset(self.rows.index[self.rows["status"].eq("done") & ~self.rows["there"]])

    @cached_property
    def _files(self) -> dict[str, tuple[str, ...]]:
        intact = self.rows[self.rows["there"]]
        return {str(cell): _named(files) for cell, files in intact["files"].items()}

    def state(self, cell: GridCell) -> State:
        """The state of a cell; `todo` also where files of it are missing or it lacks a metric."""
        if cell.reason:
            return "skipped"
        state = self._states.get(cell.hash, "todo")
        return "todo" if state == "done" and self.lacks(cell) else state

    def lacks(self, cell: GridCell) -> set[str]:
        """The metrics that today's code would compute in a finished evaluation, and that it does not have."""
        from iclbench.core.expected_metrics import lacking  # needs torch

        if cell.hash not in self._lacking:
            self._lacking[cell.hash] = lacking(self.metrics(cell), cell.frozen.question) if evaluates(cell) else set()
        return self._lacking[cell.hash]

    def metrics(self, cell: GridCell) -> set[str]:
        """The metrics that the code of a finished evaluation computes: those of its row or, if the row does not say,
        those that have values in its files."""
        recorded = self.rows["metrics"].get(cell.hash)
        if not pd.isna(recorded):
            return set(str(recorded).split())
        questions, metric_names = [cell.frozen.question, *cell.options.get("evaluators", ())], set[str]()
        for file in self._files[cell.hash]:
            if file.endswith("values.parquet"):
                rows = self._measured(file)
                metric_names |= set(rows.loc[rows["run"].eq(cell.run) & rows["evaluator"].isin(questions), "metric"])
        return metric_names

    def _measured(self, file: str) -> pd.DataFrame:
        """Runs, evaluators and metrics that have values in a file, each once."""
        if file not in self._metrics:
            columns = ["run", "evaluator", "metric", "status"]
            try:
                rows = tables.read_columns("values", self.results / file, columns)
            except tables.TableError:  # who reads its values says so
                rows = tables.frame("values", [])[columns]
            self._metrics[file] = rows[rows["status"].eq("ok")].drop_duplicates()
        return self._metrics[file]

    def has_row(self, cell: GridCell) -> bool:
        """Whether a row says what became of the cell."""
        return cell.hash in self._states

    def files(self, cell: GridCell) -> tuple[Path, ...]:
        """The files that hold what a cell found, failed rows among it; none where it came to no end."""
        ended = self.state(cell) in ("done", "diverged", "failed")
        return tuple(self.results / file for file in self._files[cell.hash]) if ended else ()

    def is_packed(self, cell: str) -> bool:
        """Whether what the cell of this hash found is there in packed files alone."""
        return any(tables.is_packed(self.results / file, self.results) for file in self._files.get(cell, ()))

    def has_episodes(self, cell: GridCell) -> bool:
        """Whether the scores of single episodes of an evaluation are there that a comparison with an oracle is made of:
        on every prompt set where an oracle has likelihoods its own, or the squared errors of one that has none."""
        values = self._rows_of("values", cell)
        values = values[values["status"].eq("ok") & values["axis"].isna() & ~values["metric"].isin(tables.COMPARING)]
        likely = values["metric"].isin(tables.LIKELIHOODS)
        oracle_prompts = set(values.loc[likely & values["kind"].eq("oracle"), "prompt_set"])
        is_own = values["run"].eq(cell.run) & values["prompt_set"].isin(oracle_prompts)
        of_points = values["metric"].eq("squared_error") & ~values["prompt_set"].isin(
            values.loc[is_own & likely, "prompt_set"]
        )
        errors = self._rows_of("errors", cell)
        present_keys = pd.MultiIndex.from_frame(errors.loc[errors["run"].eq(cell.run), ["prompt_set", "metric"]])
        required_keys = pd.MultiIndex.from_frame(values.loc[is_own & (likely | of_points), ["prompt_set", "metric"]])
        return len(required_keys) > 0 and bool(required_keys.isin(present_keys).all())

    def _rows_of(self, table: tables.TableName, cell: GridCell) -> pd.DataFrame:
        """All rows of the files that a cell names."""
        paths = [path for path in self.files(cell) if path.name.endswith(f"{table}.parquet")]
        return tables.union(table, [self._read(table, path) for path in paths])

    def _read(self, table: tables.TableName, path: Path) -> pd.DataFrame:
        if path not in self._tables:
            self._tables[path] = tables.read(table, path)
        return self._tables[path]

    def _are_intact(self, cell: str, files: Any) -> bool:
        try:
            return all(self._is_readable(file) for file in _named(files))
        except ValueError:
            log.warning("cell %s: its files cannot be read off its row; it is taken for not done", cell)
            return False

    def _is_readable(self, file: str) -> bool:
        if file not in self._readable:
            self._readable[file] = is_intact(self.results / file)
        return self._readable[file]

    def damaged(self, cell: GridCell) -> Path | None:
        """The first file that the row of a finished cell names, and that is there, but not as it was written."""
        if cell.hash not in self._gone:
            return None
        try:
            files = _named(self.rows.loc[cell.hash, "files"])
        except ValueError:
            return None
        broken = (self.results / file for file in files if not self._is_readable(file))
        return next((path for path in broken if path.is_file()), None)

    def record(self, cell: GridCell, outcome: Outcome, context: Context) -> None:
        """Write the row of a cell."""
        record(self.results, cell, outcome, context)


def record(results: Path, cell: GridCell, outcome: Outcome, context: Context) -> None:
    """Write the row of a cell, whatever process knows what became of it."""
    path = results / "cells" / cell.group / f"{cell.run}.{cell.kind}-{cell.hash}.cells.parquet"
    with writing(results):
        tables.write("cells", [row(cell, outcome, context)], path, {})


def row(cell: GridCell, outcome: Outcome, context: Context) -> dict[str, object]:
    """The row of a cell in the tables."""
    about: dict[str, object] = {
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
        return about
    return about | {
        "files": json.dumps(sorted(outcome.files)),
        "metrics": _metrics(context.results, outcome.files) if evaluates(cell) else None,
        "seconds": outcome.seconds,
        "device": machine.device(context.device),
        "hardware": machine.hardware(),
        "kernels": kernels.current(),
        "threads": context.threads,
        "libraries": machine.libraries(),
    }


def evaluates(cell: GridCell) -> bool:
    """Whether the metrics of a cell are those of predictions."""
    return cell.work == "evaluate" and not cell.is_summary


def _metrics(results: Path, files: Sequence[str]) -> str | None:
    """The metrics that these tables of an evaluation say that they know; None: they do not say."""
    metric_lists = [
        tables.metadata(results / file).get("metrics", "") for file in files if file.endswith("values.parquet")
    ]
    return " ".join(sorted({name for metric_list in metric_lists for name in metric_list.split()})) or None


def _named(files: Any) -> tuple[str, ...]:
    """The files that a row names.

    Raises:
        ValueError: this is no JSON list.
    """
    names = [] if pd.isna(files) else json.loads(str(files))
    if not isinstance(names, list):
        raise ValueError(f"{files} is no list")
    return tuple(map(str, names))


def paths(results: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Files as a row names them: relative to the results folder."""
    return tuple(path.relative_to(results).as_posix() for path in files)
