"""Evaluation cells: the scores of one contestant on one prompt set, computed once and cached.

The files of a cell are `RESULTS/tables/PROMPT_SET/RUN.{examples,errors,costs,values}.parquet`. Each file is written
atomically, `values` last. A cell is done if all its files are intact and contain the hash of everything that the cell
depends on, and if the metrics that `values` records include all metrics that the current code computes
(`iclbench.store.state`).

A failed cell has a row with the reason, and is recomputed on the next call. If a cell fails only at some context sizes,
it has such a row for each of these sizes and for each mean that includes them, in addition to its other values. Context
sizes that the contestant does not allow (`Predictor.longest`) are skipped; their rows contain the reason and are cached
like all other rows.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import pandas as pd
import torch

from iclbench import __version__, tables
from iclbench.core import devices
from iclbench.core.errors import IclbenchError, one_line
from iclbench.core.expected_metrics import missing_metrics
from iclbench.core.guard import guarded
from iclbench.core.measure import Measure
from iclbench.core.plugins import as_plugin_error
from iclbench.core.signals import raise_if_ctrl_c
from iclbench.core.version import provenance
from iclbench.evaluation.contestant import Contestant
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import identity
from iclbench.store.runs import write_errors
from iclbench.store.state import is_current, is_intact

Rows = list[dict[str, object]]
Tables = dict[tables.TableName, Rows | pd.DataFrame]


@runtime_checkable
class AnyPromptSet(Protocol):
    """The interface of all prompt sets, including those of language tasks.

    `card` is the hash of the task's card, and `headline` is the metric in the row of a failed cell.
    """

    @property
    def id(self) -> str: ...
    @property
    def task_name(self) -> str: ...
    @property
    def family_name(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def shift(self) -> str: ...
    @property
    def distribution(self) -> str: ...
    @property
    def extrapolated_to(self) -> int | None: ...
    @property
    def related_from(self) -> str | None: ...
    @property
    def data(self) -> str | None: ...
    @property
    def trained_data(self) -> str | None: ...
    @property
    def card(self) -> str: ...
    @property
    def headline(self) -> str: ...


P = TypeVar("P", bound=AnyPromptSet)


@dataclass(frozen=True)
class CellResult(Generic[P]):
    """The outcome of one cell, reported while an evaluation runs.

    Attributes:
        contestant: the contestant.
        prompts: the prompt set.
        cached: whether the cell was already done.
        reason: why the cell failed; None if it did not fail.
        note: a remark on how the answers were computed.
        pack_name: name of the packed results from which the cell was copied; empty if it was computed.
    """

    contestant: Contestant
    prompts: P
    cached: bool
    reason: str | None = None
    note: str = ""
    pack_name: str = ""


def cell_path(results: Path, contestant: Contestant, prompts: AnyPromptSet, table: str = "values") -> Path:
    """Return the path of one table of a cell."""
    return results / "tables" / prompts.id / f"{contestant.file_name}.{table}.parquet"


def cell_hash(contestant: Contestant, prompts: AnyPromptSet) -> str:
    """Return the hash of everything that the values of a cell depend on."""
    family = prompts.task.family if isinstance(prompts, PromptSet) else None
    return identity.score_id(contestant, prompts.id, family)


def is_done(results: Path, contestant: Contestant, prompts: AnyPromptSet) -> bool:
    """Return whether all tables of a cell exist, are intact, contain the cell's hash, and contain all metrics."""
    values = cell_path(results, contestant, prompts)
    metadata = tables.metadata(values)
    if "other_tables" not in metadata:
        return False
    other_tables = metadata["other_tables"].split()
    paths = [values, *(cell_path(results, contestant, prompts, name) for name in other_tables)]
    expected = {"cell": cell_hash(contestant, prompts), "schema": str(tables.SCHEMA_VERSION)}
    if not all(is_current(tables.metadata(path), expected) and is_intact(path) for path in paths):
        return False
    # For language tasks, the cell's hash includes a version of the code that computes metrics.
    question = prompts.task.question if isinstance(prompts, PromptSet) else None
    return is_current(metadata, expected, question)


def pack_name_of(results: Path, contestant: Contestant, prompts: AnyPromptSet) -> str:
    """Return the name of the packed results from which a cached cell was copied; empty if it was computed."""
    return tables.metadata(cell_path(results, contestant, prompts)).get("pack", "")


@guarded
def compute_tables(
    contestant: Contestant, prompts: AnyPromptSet, shared: dict[str, object], work: Callable[[], Tables]
) -> tuple[Tables, str | None]:
    """Compute the tables of one cell in memory.

    Args:
        contestant: the contestant.
        prompts: the prompt set.
        shared: columns of the row that is written if the cell fails.
        work: the function that computes the tables; its table `values` may contain failed rows.

    Returns:
        The tables, and the reason if all or part of the work failed.
    """
    try:
        computed_tables = work()
        return computed_tables, _first_reason(computed_tables["values"])
    except (Exception, SystemExit) as error:
        raise_if_ctrl_c(error)
        reason = one_line(as_plugin_error(error))
        return {"values": [shared | {"metric": prompts.headline, "status": "failed", "reason": reason}]}, reason


def compute_cell(
    results: Path, contestant: Contestant, prompts: AnyPromptSet, shared: dict[str, object], work: Callable[[], Tables]
) -> str | None:
    """Compute one cell with `compute_tables` and write its tables; return the reason if all or part of it failed."""
    computed_tables, reason = compute_tables(contestant, prompts, shared, work)
    write(results, contestant, prompts, computed_tables, reason)
    return reason


def write(
    results: Path, contestant: Contestant, prompts: AnyPromptSet, cell_tables: Tables, reason: str | None
) -> None:
    """Write the tables of a cell. The cell counts as done if `reason`, the reason for a failure, is None."""
    libraries = {f"library.{name}": version for name, version in contestant.libraries.items()}
    if reason is None:
        write_finished(results, contestant, prompts, cell_tables, libraries)
    else:
        _write_tables(results, contestant, prompts, cell_tables, libraries)


def write_finished(
    results: Path, contestant: Contestant, prompts: AnyPromptSet, cell_tables: Tables, metadata: dict[str, str]
) -> None:
    """Write the tables of a finished cell; `metadata` records how they were computed."""
    _write_tables(results, contestant, prompts, cell_tables, {"cell": cell_hash(contestant, prompts)} | metadata)


def _write_tables(
    results: Path,
    contestant: Contestant,
    prompts: AnyPromptSet,
    cell_tables: Tables,
    metadata: dict[str, str],
) -> None:
    """Write the tables of a cell, `values` last, and remove its old tables that are not rewritten.

    Raises:
        IclbenchError: the run was deleted during its evaluation; no table of the cell remains.
    """
    values_metadata = {"other_tables": " ".join(sorted(cell_tables.keys() - {"values"}))}
    if isinstance(prompts, PromptSet):
        rows = tables.frame("values", cell_tables["values"])
        names = set(rows.loc[rows["status"].eq("ok"), "metric"])
        values_metadata["metrics"] = " ".join(sorted(names | missing_metrics(names, prompts.task.question)))
    with write_errors(results):
        _remove_sweep_rows(results, contestant, prompts, metadata.get("cell"))
        for name in {*tables.SCHEMAS} - {*cell_tables}:
            cell_path(results, contestant, prompts, name).unlink(missing_ok=True)
        for name in sorted(cell_tables, key=lambda name: name == "values"):
            file_metadata = metadata | values_metadata if name == "values" else metadata
            tables.write(name, cell_tables[name], cell_path(results, contestant, prompts, name), file_metadata)
        # The folder is checked after writing: a later deletion of the run also deletes these tables.
        if contestant.folder is not None and not contestant.folder.is_dir():
            for name in cell_tables:
                cell_path(results, contestant, prompts, name).unlink(missing_ok=True)
            raise IclbenchError(
                f"run '{contestant.folder.name}' was deleted while this command evaluated it", code="missing-file"
            )


def _remove_sweep_rows(results: Path, contestant: Contestant, prompts: AnyPromptSet, cell_id: str | None) -> None:
    """Remove the rows of sweeps that refer to the files of a cell, if these files will be replaced by the files of a
    cell with another hash."""
    path = cell_path(results, contestant, prompts)
    if tables.metadata(path).get("cell", cell_id) == cell_id:
        return
    quoted = json.dumps(path.relative_to(results).as_posix())
    folder = glob.escape(f"{prompts.task_name}-{prompts.preset}")
    run_pattern = glob.escape(contestant.run.partition("+")[0])  # without the suffix of a method
    for sweep_row in results.glob(f"cells/{folder}/{run_pattern}.*.cells.parquet"):
        with suppress(tables.TableError):
            if tables.read("cells", sweep_row)["files"].str.contains(quoted, regex=False).any():
                sweep_row.unlink(missing_ok=True)


def _first_reason(values: Rows | pd.DataFrame) -> str | None:
    """Return the reason of the first failed row; None if no row has failed."""
    rows = values.to_dict("records") if isinstance(values, pd.DataFrame) else values
    return next((str(row["reason"]) for row in rows if row["status"] == "failed"), None)


def shared_columns(contestant: Contestant, prompts: AnyPromptSet, evaluator: str) -> dict[str, object]:
    """Return the columns that all rows of a cell share."""
    return {
        "run": contestant.run,
        "task": prompts.task_name,
        "family": prompts.family_name,
        "data": prompts.data,
        "trained_data": prompts.trained_data,
        "contestant": contestant.name,
        "model": contestant.model_name or contestant.name,
        "method": contestant.method_suffix,
        "kind": contestant.kind,
        "preset": prompts.preset,
        "seed": contestant.seed,
        "variant": contestant.variant,
        "tuned": contestant.tuned,
        "trained_on": contestant.trained_on,
        "context_order": contestant.order,
        "shift": prompts.shift,
        "distribution": prompts.distribution,
        "extrapolated_to": prompts.extrapolated_to,
        "related_from": prompts.related_from,
        "evaluator": evaluator,
        "prompt_set": prompts.id,
        "card": prompts.card,
        "status": "ok",
        **provenance(),
    }


def skipped_tables(prompts: AnyPromptSet, shared: dict[str, object], reason: str) -> Tables:
    """Return the tables of a cell that is not applicable to the contestant; `shared` is as in `compute_cell`."""
    return {"values": [shared | {"metric": prompts.headline, "status": "skipped", "reason": reason}]}


def error_rows(
    contestant: Contestant, prompts: AnyPromptSet, scores: dict[str, np.ndarray], **sizes: np.ndarray
) -> pd.DataFrame:
    """Return rows of the table `errors`, one per metric and finite score.

    Args:
        contestant: the contestant.
        prompts: the prompt set.
        scores: scores by metric, `(episodes, positions)`.
        sizes: further columns of the table, such as `n_context`, `(positions,)` or `(episodes, positions)`.
    """
    frames = []
    for name, values in scores.items():
        finite_index = np.nonzero(np.isfinite(values))
        columns = {
            "run": contestant.run,
            "prompt_set": prompts.id,
            "metric": name,
            **{column: np.broadcast_to(size, values.shape)[finite_index] for column, size in sizes.items()},
            "episode": finite_index[0],
            "value": values[finite_index],
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True) if frames else tables.frame("errors", [])


def cost_rows(contestant: PredictorContestant, prompts: PromptSet, cost: Measure) -> Rows:
    """Return rows of the table `costs` with seconds and peak memory.

    The result is empty for shifted distributions and for the family's own tests, because they cost as much as the
    prompt set without a shift.
    """
    if prompts.evaluator or prompts.distribution != "none":
        return []
    return evaluation_cost_rows(contestant, prompts, cost, prompts.context_points)


def evaluation_cost_rows(contestant: Contestant, prompts: AnyPromptSet, cost: Measure, n_points: int) -> Rows:
    """Return rows of the table `costs` for the evaluation of a cell."""
    shared: dict[str, object] = {
        "run": contestant.run,
        "task": prompts.task_name,
        "contestant": contestant.name,
        "preset": prompts.preset,
        "phase": "evaluate",
        "n_points": n_points,
        "device": devices.device_label(contestant.device),
        "threads": torch.get_num_threads(),
        "version": __version__,
    }
    # A peak of 0 means that memory which the allocator already held was sufficient, not that no memory was used.
    measurements = {"seconds": cost.seconds, "bytes": cost.bytes}
    return [shared | {"metric": name, "value": float(v)} for name, v in measurements.items() if v]
