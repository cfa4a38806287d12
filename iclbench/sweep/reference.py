"""Reuse of packed results of baselines, so that an evaluation computes only cells that are not packed.

A packed cell is used if it would be recomputed identically: it has the same prompt set, the same hash (task, settings,
samplers and estimators), and the same versions of the libraries that compute the baseline. The packed files must also
contain the errors that paired tests need. If these are missing, the cell is computed. This happens if a task and
preset were packed without errors, or if a score of the task compares contestants in each episode.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from iclbench import tables
from iclbench.config.cards import card_names
from iclbench.core.errors import UsageError
from iclbench.estimators.base import FittedPredictor
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.evaluate import PackedCell
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.archives import results_folders
from iclbench.store.state import is_current
from iclbench.sweep.cells import GridCell
from iclbench.sweep.plan import is_compared_by_episode

log = logging.getLogger("iclbench")

# The name of a folder, and its packed tables of one task and preset.
_Group: TypeAlias = tuple[str, dict[tables.TableName, pd.DataFrame]]

_COPIED_TABLES: tuple[tables.TableName, ...] = ("values", "errors", "examples")


class PackedBaselines:
    """Finds the cells of baselines in packed results.

    Args:
        results: results folder. Its packed results are searched before the packed results of the checkout.
    """

    def __init__(self, results: Path) -> None:
        self._folders = results_folders(results)
        self._groups: dict[tuple[str, str], list[_Group]] = {}

    def __call__(self, contestant: PredictorContestant, prompts: PromptSet) -> PackedCell | None:
        """Return the packed cell of a baseline on a prompt set; None if it is not packed."""
        if (
            contestant.kind == "backbone"
            or is_compared_by_episode(prompts.task)
            or not _is_shipped_card(contestant, prompts)
        ):
            return None
        key = (prompts.task_name, prompts.preset)
        if key not in self._groups:
            self._groups[key] = [group for folder in self._folders for group in _groups(folder, *key)]
        cells_of_groups = (_shipped_cell(group, contestant, prompts) for group in self._groups[key])
        return next((cell for cell in cells_of_groups if cell), None)


def _is_shipped_card(contestant: PredictorContestant, prompts: PromptSet) -> bool:
    """Whether the contestant is defined by the shipped card of its name, not by a user's card with the same name."""
    if contestant.name not in card_names("baselines"):
        return False
    try:
        return contestants.baselines(prompts, [contestant.name])[0].identity == contestant.identity
    except UsageError:  # the shipped baseline does not fit this task
        return False


def _groups(results: Path, task: str, preset: str) -> Iterator[_Group]:
    """Yield the packed tables of a task and preset from each folder of packed results."""
    for path in sorted(results.glob(f"*/{tables.packed_file_name('cells', task, preset)}")):
        try:
            frames = {
                name: tables.read(name, table_path) if table_path.is_file() else tables.frame(name, [])
                for name in (*_COPIED_TABLES, "cells")
                for table_path in [path.with_name(tables.packed_file_name(name, task, preset))]
            }
        except tables.TableError as error:
            log.warning("packed baselines are not used: %s", error)
            continue
        yield path.parent.name, frames


def _shipped_cell(group: _Group, contestant: PredictorContestant, prompts: PromptSet) -> PackedCell | None:
    """Return the cell of a baseline from one folder of packed results; None if the folder lacks it."""
    source, packed_tables = group
    values = packed_tables["values"]
    # Use only rows of evaluations, without summaries and probes.
    evaluators = [prompts.task.question, *prompts.family.evaluators()]
    is_evaluation = values["run"].eq(contestant.run) & values["evaluator"].isin(evaluators)
    values = values[is_evaluation & ~values["metric"].isin(tables.COMPARISON_METRICS)]
    row = _cell_row(packed_tables["cells"], values, contestant, prompts)
    if row is None:
        return None
    libraries = json.loads(str(row["libraries"]))
    if not _same_libraries(contestant, libraries):
        return None
    shipped_tables: cells.Tables = {}
    for name in _COPIED_TABLES:
        rows = values if name == "values" else packed_tables[name][packed_tables[name]["run"].eq(contestant.run)]
        if len(rows := rows[rows["prompt_set"].eq(prompts.id)]):
            shipped_tables[name] = rows.reset_index(drop=True)
    # Under a shift the errors of curves are not packed, since no paired test uses them.
    is_complete = "values" in shipped_tables and ("errors" in shipped_tables or prompts.shift != "none")
    recorded_versions = {name: libraries[name] for name in contestant.libraries if name in libraries}
    return PackedCell(source, shipped_tables, recorded_versions) if is_complete else None


def _cell_row(
    cell_rows: pd.DataFrame, values: pd.DataFrame, contestant: PredictorContestant, prompts: PromptSet
) -> Mapping[Any, object] | None:
    """Return the row of the finished cell that computed these values. Return None unless the cell has the hash that the
    current code and task give for the options in these values, and all metrics that the current code computes.
    """
    question = values["evaluator"].eq(prompts.task.question)
    options = {
        "shifts": sorted(values.loc[question, "shift"].unique()),
        "evaluators": sorted(values.loc[~question, "evaluator"].unique()),
        "seed": prompts.seed,
    }
    name = contestant.name
    cell = GridCell("evaluate", name, name, prompts.task, prompts.preset, options=options, baseline=name)
    rows = cell_rows[cell_rows["cell"].eq(cell.hash)].to_dict("records")
    expected = {"cell": cell.hash, "status": "done"}
    return next((row for row in rows if is_current(row, expected, prompts.task.question)), None)


def _same_libraries(contestant: PredictorContestant, recorded: Mapping[str, str]) -> bool:
    """Whether the libraries that compute the baseline have the recorded versions. Builds of the same version for
    different processors count as equal."""
    predictor = contestant.predictor
    # Results of iclbench's own code do not depend on the versions of libraries.
    needed = predictor.libraries if isinstance(predictor, FittedPredictor) else ()
    return all(
        _public_version(contestant.libraries[name]) == _public_version(recorded.get(name, "")) for name in needed
    )


def _public_version(version: str) -> str:
    return version.partition("+")[0]
