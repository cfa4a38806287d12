"""What a plan has to do by the table `cells`, against what lies in the results folder: trainings and evaluations that
were done outside of any sweep, and folders of runs that a sweep will refuse."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iclbench.core.context import Context
from iclbench.core.errors import DataChangedError, DataError, IclbenchError, UsageError
from iclbench.store.runs import Run, TrainedOtherwiseError, refuse_other
from iclbench.sweep.cells import KINDS, GridCell
from iclbench.sweep.plan import Plan

if TYPE_CHECKING:
    from iclbench.families.base import Family


@dataclass(frozen=True)
class Found:
    """A plan without what takes no work.

    Attributes:
        plan: what is left; cells that are there count as done.
        there: cells of which only the row is missing, by kind.
        refused: why a sweep will refuse runs, by name.
        failing: cells that will fail for it.
        no_data: tasks whose data cannot be read, by why; their cells will fail.
    """

    plan: Plan
    there: dict[str, int]
    refused: dict[str, str]
    failing: int
    no_data: dict[str, list[str]]


def look(plan: Plan, context: Context) -> Found:
    """Compare the cells to do with the results folder, which stays as it is; nothing is computed."""
    refused: dict[str, str] = {}
    for cell in plan.todo:
        asked = cell.config is not None and not cell.reason and cell.run not in refused
        if asked and (why := refusal(context.results, cell)) is not None:
            refused[cell.run] = why
    # What a backbone costs does not depend on its weights.
    failing = {cell.hash for cell in plan.todo if cell.run in refused and cell.kind != "cost"}
    again = {cell.hash for cell in plan.again}
    there = [
        cell for cell in plan.todo if cell.hash not in failing | again and not cell.reason and _is_there(cell, context)
    ]
    settled = failing | {cell.hash for cell in there}
    left = replace(
        plan,
        states={**plan.states, **{cell.hash: "done" for cell in there}},
        todo=tuple(cell for cell in plan.todo if cell.hash not in settled),
    )
    found = Counter(cell.kind for cell in there)
    by_kind: dict[str, int] = {kind: found[kind] for kind in KINDS if found[kind]}
    return Found(left, by_kind, refused, len(failing), _no_data(left, context.data_dir))


def _no_data(plan: Plan, data_dir: Path | None) -> dict[str, list[str]]:
    """Why data cannot be read, and the tasks with work to do that need them."""
    found: dict[str, list[str]] = {}
    for task, cell in {cell.task: cell for cell in plan.todo if cell.reason is None}.items():
        try:
            cell.read_data(data_dir)
        except DataError as error:
            found.setdefault(str(error), []).append(task)
        except IclbenchError:  # the sweep will say why
            continue
    return found


def check_data(plan: Plan, context: Context) -> None:
    """Raise `UsageError` where a run of the grid was trained on other data than there are now. Data that cannot
    be read are reported by the cells that need them."""
    families: dict[str, Family] = {}
    for cell in plan.cells:
        if cell.kind != "train" or cell.config is None or cell.reason is not None:
            continue
        key = json.dumps([cell.task, cell.frozen.parameters, cell.frozen.files])
        family = families[key] = families.get(key) or cell.frozen.build(context.data_dir)
        run = Run(context.results / "runs" / cell.run)
        if not family.needs_data or not run.begun:
            continue
        try:
            family.check_data(run.config.task.learned)
        except DataChangedError as error:
            raise UsageError(f"run '{run.name}': {error}") from error
        except DataError:
            continue


def refusal(results: Path, cell: GridCell) -> str | None:
    """Why the folder of a cell's run cannot be the run that the grid asks for; None: it can."""
    assert cell.config is not None
    run = Run(results / "runs" / cell.run)
    try:
        refuse_other(run, cell.config)
    except TrainedOtherwiseError as error:
        return in_the_way(error)
    except IclbenchError as error:
        return str(error)
    return None


def in_the_way(error: TrainedOtherwiseError) -> str:
    """What to do about another run in a folder that a grid needs."""
    return (
        f"{error.run.path} holds a run of this name that was trained under other settings: move it away, or delete "
        f"it with iclbench rm {error.run.name}, and the same command trains anew ({error.difference})"
    )


def _is_there(cell: GridCell, context: Context) -> bool:
    """Whether everything that the cell would do is done."""
    if cell.kind == "train":
        run = Run(context.results / "runs" / cell.run)
        return run.is_intact
    return cell.work == "evaluate" and not cell.is_summary and _is_evaluated(cell, context)


def _is_evaluated(cell: GridCell, context: Context) -> bool:
    results, data_dir = context.results, context.data_dir
    asked = len(cell.asked["shifts"]) + len(cell.asked["evaluators"])
    folders = results.glob(f"tables/{cell.group}-*")
    if sum((folder / f"{cell.run}.values.parquet").is_file() for folder in folders) < asked:
        return False  # known without drawing episodes, reading weights or importing torch
    from iclbench.evaluation import contestants
    from iclbench.evaluation.cells import is_done
    from iclbench.evaluation.evaluate import prompt_sets

    try:
        family = cell.frozen.build_held_out(data_dir)
        sets = prompt_sets(
            cell.frozen,
            cell.preset,
            cell.asked["shifts"],
            cell.asked["evaluators"],
            cell.asked["seed"],
            data_dir,
            family,
        )
        if cell.baseline is not None:
            return all(is_done(results, contestants.baselines(each, [cell.baseline])[0], each) for each in sets)
        run = contestants.backbone(Run(results / "runs" / cell.run), data_dir=data_dir)
        return all(is_done(results, run, each) for each in sets)
    except IclbenchError:  # the sweep will say why
        return False
