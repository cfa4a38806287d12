"""Size, date and score of runs, for `iclbench list runs`. This module does not import torch or pandas, so that the
command is fast."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iclbench.core import digests
from iclbench.store.runs import Run

# Evaluators whose score is shown for a run, in order of preference: the trained question comes before the tests of the
# family.
_EVALUATORS = ("next", "targets", "icl")


def size(run: Run) -> int:
    """Return the total size of all files in the folder of a run, in bytes."""
    return _folder_size(run.path)


def _folder_size(folder: str | Path) -> int:
    with os.scandir(folder) as entries:
        return sum(
            _folder_size(entry.path)
            if entry.is_dir(follow_symlinks=False)
            else entry.stat(follow_symlinks=False).st_size
            for entry in entries
        )


def date(run: Run) -> str | None:
    """Return the day on which the weights or, before the end of training, the last checkpoint were written."""
    path = run.weights if run.is_finished else next(iter(run.checkpoints[-1:]), None)
    return None if path is None else time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))


def scores(results: Path) -> dict[tuple[str, str], float]:
    """Return the scores of runs without a shift, by run and task. A run may have scores on several tasks, such as the
    user's own tables."""
    columns = ("run", "task", "shift", "evaluator", "axis", "n_context", "n_related", "metric", "value", "trained_on")
    best: dict[tuple[str, str], tuple[tuple[int, str, int], float]] = {}
    for path in sorted((results / "tables").glob("*/summary/scores.values.parquet")):
        for row in read_rows(path, columns):
            is_partial = any(row[column] is not None for column in ("axis", "n_context", "trained_on"))
            if is_partial or row["shift"] != "none" or row["metric"] != "score" or row["value"] is None:
                continue
            name = row["evaluator"]
            rank = _EVALUATORS.index(name) if name in _EVALUATORS else len(_EVALUATORS)
            order = (rank, path.parts[-3], row["n_related"] or 0)
            key = (row["run"], row["task"])
            if key not in best or order < best[key][0]:
                best[key] = (order, row["value"])
    return {key: value for key, (_, value) in best.items()}


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with these columns. A column that the file lacks is None. A damaged file has no
    rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = path.read_bytes()
        digests.check(content)
        # read_table would import pandas, and starting its threads takes longer than reading these few rows.
        with pq.ParquetFile(pa.BufferReader(content), pre_buffer=False) as file:
            file_rows = file.read(columns=list(columns), use_threads=False).to_pylist()
            yield from (dict.fromkeys(columns) | row for row in file_rows)
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return
