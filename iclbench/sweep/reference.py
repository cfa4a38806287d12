"""Baseline cells that packed results hold already, so that an evaluation beside them computes only what is new.

A cell is taken where it is the very one: the same prompt set, and a finished evaluation of the same baseline under the
same hash (task, settings, samplers and estimators), by the same versions of the libraries that it is fitted by. Values
are those that were packed. Of the errors packed files hold what paired tests need; where these are missing (a packed
group without errors, or a task whose scores compare episode by episode), the cell is computed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from iclbench import tables
from iclbench.config.cards import names
from iclbench.core.errors import UsageError
from iclbench.estimators.base import FittedPredictor
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.evaluate import Shipped
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.archives import with_shipped
from iclbench.sweep.cells import GridCell
from iclbench.sweep.plan import by_episode

log = logging.getLogger("iclbench")

# A folder's name and its packed tables of one task and preset.
_Group: TypeAlias = tuple[str, dict[tables.TableName, pd.DataFrame]]

_COPIED: tuple[tables.TableName, ...] = ("values", "errors", "examples")


class PackedBaselines:
    """Packed results, looked through for the cells of baselines.

    Args:
        results: results folder; behind its packed results come those of the checkout that runs.
    """

    def __init__(self, results: Path) -> None:
        self._folders = with_shipped(results)
        self._read: dict[tuple[str, str], list[_Group]] = {}

    def __call__(self, contestant: PredictorContestant, prompts: PromptSet) -> Shipped | None:
        """The cell of a baseline, None where no packed results hold it."""
        if contestant.kind == "backbone" or by_episode(prompts.task) or not _is_shipped_card(contestant, prompts):
            return None
        key = (prompts.task_name, prompts.preset)
        if key not in self._read:
            self._read[key] = [group for folder in self._folders for group in _groups(folder, *key)]
        return next((found for group in self._read[key] if (found := _found(group, contestant, prompts))), None)


def _is_shipped_card(contestant: PredictorContestant, prompts: PromptSet) -> bool:
    """Whether the contestant is what the shipped card of its name says, and not a user's own of that name."""
    if contestant.name not in names("baselines"):
        return False
    try:
        return contestants.baselines(prompts, [contestant.name])[0].identity == contestant.identity
    except UsageError:  # the shipped one does not fit this task
        return False


def _groups(results: Path, task: str, preset: str) -> Iterator[_Group]:
    """The packed tables of a task and preset in every folder that has any."""
    for path in sorted(results.glob(f"*/{tables.packed_name('cells', task, preset)}")):
        try:
            frames = {
                name: tables.read(name, other) if other.is_file() else tables.frame(name, [])
                for name in (*_COPIED, "cells")
                for other in [path.with_name(tables.packed_name(name, task, preset))]
            }
        except tables.TableError as error:
            log.warning("packed baselines are not used: %s", error)
            continue
        yield path.parent.name, frames


def _found(group: _Group, contestant: PredictorContestant, prompts: PromptSet) -> Shipped | None:
    source, packed = group
    values = packed["values"]
    # Neither what follows from all contestants together nor what probes found.
    tests = [prompts.task.question, *prompts.family.evaluators()]
    own_rows = values["run"].eq(contestant.run) & values["evaluator"].isin(tests)
    values = values[own_rows & ~values["metric"].isin(tables.COMPARING)]
    row = _row(packed["cells"], values, contestant, prompts)
    if row is None or cells.lacks(values[values["prompt_set"].eq(prompts.id)], prompts, _known(row)):
        return None
    libraries = json.loads(str(row["libraries"]))
    if not _same_libraries(contestant, libraries):
        return None
    own: cells.Tables = {}
    for name in _COPIED:
        rows = values if name == "values" else packed[name][packed[name]["run"].eq(contestant.run)]
        if len(rows := rows[rows["prompt_set"].eq(prompts.id)]):
            own[name] = rows.reset_index(drop=True)
    # Under a shift the errors of curves are not packed: they are compared in pairs nowhere.
    complete = "values" in own and ("errors" in own or prompts.shift != "none")
    recorded = {name: libraries[name] for name in contestant.libraries if name in libraries}
    return Shipped(source, own, recorded) if complete else None


def _row(
    cell_rows: pd.DataFrame, values: pd.DataFrame, contestant: PredictorContestant, prompts: PromptSet
) -> pd.Series | None:
    """The finished cell that these values are of, if it is the one that would be computed: its hash is taken again over
    the task as it is asked now, and over what the rows say was asked then."""
    question = values["evaluator"].eq(prompts.task.question)
    asked = {
        "shifts": sorted(values.loc[question, "shift"].unique()),
        "evaluators": sorted(values.loc[~question, "evaluator"].unique()),
        "seed": prompts.seed,
    }
    name = contestant.name
    cell = GridCell("evaluate", name, name, prompts.task, prompts.preset, asked=asked, baseline=name)
    rows = cell_rows[cell_rows["cell"].eq(cell.hash) & cell_rows["status"].eq("done")]
    return rows.iloc[0] if len(rows) else None


def _known(row: pd.Series) -> str:
    return "" if pd.isna(row["metrics"]) else str(row["metrics"])


def _same_libraries(contestant: PredictorContestant, recorded: Mapping[str, str]) -> bool:
    """Whether the libraries that the answers come from have the versions that they had then. Builds of one version for
    other processors count as one, as machines do."""
    predictor = contestant.predictor
    # What is our own is exact, whatever the version.
    needed = predictor.libraries if isinstance(predictor, FittedPredictor) else ()
    return all(_public(contestant.libraries[name]) == _public(recorded.get(name, "")) for name in needed)


def _public(version: str) -> str:
    return version.partition("+")[0]
