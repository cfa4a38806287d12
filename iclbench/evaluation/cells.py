"""Evaluation cells: one contestant on one prompt set, computed once and cached.

A cell is a few files, `RESULTS/tables/PROMPT_SET/CONTESTANT.{examples,errors,costs,values}.parquet`, each written
atomically and `values` last. It is done when the metadata of `values` carries the hash of all that it depends on and
the files that `values` names as written beside it are of the same cell, and when it lacks no metric that today's code
would compute: it names those of the code that computed it (`metrics`). A failed cell is a row with a reason and is
tried again on the next call; one that failed at some context sizes has such a row for each of them, and for every mean
over them, and keeps the others. What a contestant does not take (`Predictor.longest`) is skipped: a row with a reason
that is kept, beside all others.
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
from iclbench.core.expected_metrics import lacking
from iclbench.core.guard import guarded
from iclbench.core.measure import Measure
from iclbench.core.plugins import blamed
from iclbench.core.signals import heed_ctrl_c
from iclbench.core.version import provenance
from iclbench.evaluation.contestant import Contestant
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import identity
from iclbench.store.runs import writing

Rows = list[dict[str, object]]
Tables = dict[tables.TableName, Rows | pd.DataFrame]


@runtime_checkable
class AnyPromptSet(Protocol):
    """A frozen prompt set of any kind: `card` is the hash of the task's card, `headline` the metric that a failed cell
    is missing."""

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
    """One cell of an evaluation, as it is reported while the evaluation runs.

    Attributes:
        contestant: whose cell it is.
        prompts: the prompt set.
        cached: it was there already.
        reason: why it failed; None: it did not.
        note: how its answers were found, where that is not plain.
        shipped: the packed results that it was taken from; empty: computed here.
    """

    contestant: Contestant
    prompts: P
    cached: bool
    reason: str | None = None
    note: str = ""
    shipped: str = ""


def cell_path(results: Path, contestant: Contestant, prompts: AnyPromptSet, table: str = "values") -> Path:
    return results / "tables" / prompts.id / f"{contestant.run}.{table}.parquet"


def cell_hash(contestant: Contestant, prompts: AnyPromptSet) -> str:
    """Hash of everything the cell's values depend on."""
    family = prompts.task.family if isinstance(prompts, PromptSet) else None
    return identity.score_id(contestant, prompts.id, family)


def is_done(results: Path, contestant: Contestant, prompts: AnyPromptSet) -> bool:
    """Whether the cell's value table and its other tables exist, are intact, and are of exactly this contestant."""
    path = cell_path(results, contestant, prompts)
    expected, metadata = cell_hash(contestant, prompts), tables.metadata(path)
    other_paths = [cell_path(results, contestant, prompts, name) for name in metadata.get("beside", "").split()]
    if metadata.get("cell") != expected or any(
        tables.metadata(other_path).get("cell") != expected for other_path in other_paths
    ):
        return False
    if not all(map(tables.is_intact, other_paths)):
        return False
    try:
        values = tables.read("values", path)
    except tables.TableError:
        return False
    return not lacks(values, prompts, metadata.get("metrics", ""))


def lacks(values: Rows | pd.DataFrame, prompts: AnyPromptSet, known_metrics: str = "") -> set[str]:
    """The metrics of an evaluation that today's code would compute and that are neither in its rows nor, separated by
    blanks, `known_metrics` to the code that computed it."""
    if not isinstance(prompts, PromptSet):  # of other prompt sets the hash says which code answers
        return set()
    return lacking(_measured(values), prompts.task.question) - set(known_metrics.split())


def _measured(values: Rows | pd.DataFrame) -> set[str]:
    """The metrics that have values."""
    if isinstance(values, pd.DataFrame):
        return set(values.loc[values["status"].eq("ok"), "metric"])
    return {str(row["metric"]) for row in values if row["status"] == "ok"}


def shipped_from(results: Path, contestant: Contestant, prompts: AnyPromptSet) -> str:
    """The packed results that a cached cell was taken from; empty: it was computed here."""
    return tables.metadata(cell_path(results, contestant, prompts)).get("from", "")


@guarded
def computed(
    contestant: Contestant, prompts: AnyPromptSet, shared: dict[str, object], work: Callable[[], Tables]
) -> tuple[Tables, str | None]:
    """The tables of one cell, in memory, and the reason if the work failed.

    `shared` is what a row of a failed cell says besides the reason. Work that failed in part gives failed rows among
    its values; they are kept, and the cell is not done.
    """
    try:
        computed_tables = work()
        return computed_tables, _first_reason(computed_tables["values"])
    except (Exception, SystemExit) as error:
        heed_ctrl_c(error)
        reason = one_line(blamed(error))
        return {"values": [shared | {"metric": prompts.headline, "status": "failed", "reason": reason}]}, reason


def compute_cell(
    results: Path, contestant: Contestant, prompts: AnyPromptSet, shared: dict[str, object], work: Callable[[], Tables]
) -> str | None:
    """Do the work of one cell and write its tables, see `computed`; returns the reason if the work failed."""
    computed_tables, reason = computed(contestant, prompts, shared, work)
    write(results, contestant, prompts, computed_tables, reason)
    return reason


def write(
    results: Path, contestant: Contestant, prompts: AnyPromptSet, cell_tables: Tables, reason: str | None
) -> None:
    """Write the tables of a cell, `values` last; with a `reason` it failed, and is not done."""
    libraries = {f"library.{name}": version for name, version in contestant.libraries.items()}
    if reason is None:
        keep(results, contestant, prompts, cell_tables, libraries)
    else:
        _write(results, contestant, prompts, cell_tables, libraries)


def keep(
    results: Path, contestant: Contestant, prompts: AnyPromptSet, cell_tables: Tables, about: dict[str, str]
) -> None:
    """Write the tables of a finished cell, `values` last; `about` says in their metadata how they were found."""
    _write(results, contestant, prompts, cell_tables, {"cell": cell_hash(contestant, prompts)} | about)


def _write(
    results: Path,
    contestant: Contestant,
    prompts: AnyPromptSet,
    cell_tables: Tables,
    metadata: dict[str, str],
) -> None:
    """Write the tables of a cell and remove others, which another contestant of this name may have left.

    Raises:
        IclbenchError: the run was deleted meanwhile; nothing is left of the cell.
    """
    about_values = {"beside": " ".join(sorted(cell_tables.keys() - {"values"}))}
    if isinstance(prompts, PromptSet):
        names = _measured(cell_tables["values"]) | lacks(cell_tables["values"], prompts)
        about_values["metrics"] = " ".join(sorted(names))
    with writing(results):
        _forget_rows(results, contestant, prompts, metadata.get("cell"))
        for name in {*tables.SCHEMAS} - {*cell_tables}:
            cell_path(results, contestant, prompts, name).unlink(missing_ok=True)
        for name in sorted(cell_tables, key=lambda name: name == "values"):
            file_metadata = metadata | about_values if name == "values" else metadata
            tables.write(name, cell_tables[name], cell_path(results, contestant, prompts, name), file_metadata)
        # After writing: a run that is deleted later takes its tables along.
        if contestant.folder is not None and not contestant.folder.is_dir():
            for name in cell_tables:
                cell_path(results, contestant, prompts, name).unlink(missing_ok=True)
            raise IclbenchError(f"run '{contestant.folder.name}' was deleted while this command evaluated it")


def _forget_rows(results: Path, contestant: Contestant, prompts: AnyPromptSet, cell_id: str | None) -> None:
    """Remove the rows of sweeps which say that the cell's values, about to be those of another, are what they found."""
    path = cell_path(results, contestant, prompts)
    if tables.metadata(path).get("cell", cell_id) == cell_id:
        return
    quoted = json.dumps(path.relative_to(results).as_posix())
    run_pattern = glob.escape(contestant.run.partition("+")[0])  # without the method that was applied
    for row in results.glob(
        f"cells/{glob.escape(f'{prompts.task_name}-{prompts.preset}')}/{run_pattern}.*.cells.parquet"
    ):
        with suppress(tables.TableError):
            if tables.read("cells", row)["files"].str.contains(quoted, regex=False).any():
                row.unlink(missing_ok=True)


def _first_reason(values: Rows | pd.DataFrame) -> str | None:
    """Why the first failed row failed; None: all rows are good."""
    rows = values.to_dict("records") if isinstance(values, pd.DataFrame) else values
    return next((str(row["reason"]) for row in rows if row["status"] == "failed"), None)


def row(contestant: Contestant, prompts: AnyPromptSet, evaluator: str) -> dict[str, object]:
    """Columns that all rows of a cell share."""
    return {
        "run": contestant.run,
        "task": prompts.task_name,
        "family": prompts.family_name,
        "data": prompts.data,
        "trained_data": prompts.trained_data,
        "contestant": contestant.name,
        "model": contestant.model_name or contestant.name,
        "method": contestant.applied,
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


def skipped(prompts: AnyPromptSet, shared: dict[str, object], reason: str) -> Tables:
    """The tables of a cell that is not applicable to the contestant; `shared` as in `compute_cell`."""
    return {"values": [shared | {"metric": prompts.headline, "status": "skipped", "reason": reason}]}


def error_rows(
    contestant: Contestant, prompts: AnyPromptSet, scores: dict[str, np.ndarray], **sizes: np.ndarray
) -> pd.DataFrame:
    """One row per metric and finite score of `(episodes, positions)`; `sizes` are further columns of the table by
    position, `(positions,)`, or by episode and position."""
    frames = []
    for name, values in scores.items():
        at = np.nonzero(np.isfinite(values))
        columns = {
            "run": contestant.run,
            "prompt_set": prompts.id,
            "metric": name,
            **{column: np.broadcast_to(size, values.shape)[at] for column, size in sizes.items()},
            "episode": at[0],
            "value": values[at],
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True) if frames else tables.frame("errors", [])


def cost_rows(contestant: PredictorContestant, prompts: PromptSet, cost: Measure) -> Rows:
    """Seconds and peak memory; only where the distribution is the task's own, since a shift or a test costs the
    same."""
    if prompts.evaluator or prompts.distribution != "none":
        return []
    return measured_rows(contestant, prompts, cost, prompts.context_points)


def measured_rows(contestant: Contestant, prompts: AnyPromptSet, cost: Measure, n_points: int) -> Rows:
    """Cost rows of the evaluation of a cell."""
    shared: dict[str, object] = {
        "run": contestant.run,
        "task": prompts.task_name,
        "contestant": contestant.name,
        "preset": prompts.preset,
        "phase": "evaluate",
        "n_points": n_points,
        "device": devices.label(contestant.device),
        "threads": torch.get_num_threads(),
        "version": __version__,
    }
    # No growth seen means that what the allocator already held was enough, not that none was needed.
    measured = {"seconds": cost.seconds, "bytes": cost.bytes}
    return [shared | {"metric": name, "value": float(v)} for name, v in measured.items() if v]
