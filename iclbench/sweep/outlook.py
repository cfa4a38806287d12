"""The outlook of a plan: which of its cells need work, and which will fail, according to the files in the results
folder. Models may have been trained or evaluated outside of a sweep, and a run folder may hold a run whose settings
differ from the settings of the grid."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iclbench.core.context import Context
from iclbench.core.errors import DataChangedError, DataError, IclbenchError, UsageError
from iclbench.store.cells import computes_scores
from iclbench.store.runs import Run, SettingsChangedError, check_same_run
from iclbench.sweep.cells import KINDS, GridCell
from iclbench.sweep.plan import Plan

if TYPE_CHECKING:
    from iclbench.families.base import Family


@dataclass(frozen=True)
class Outlook:
    """What a sweep is expected to do: the cells that need work, and the cells that will fail.

    Attributes:
        plan: the plan without the cells that will be refused. Cells whose results exist count as done.
        existing: number of cells that have results but no row, by kind.
        refusals: the reason for each run that the sweep will refuse, by name of the run.
        failing_cells: number of cells that will fail because of refusals.
        missing_data: tasks whose data cannot be read, by reason. Their cells will fail.
    """

    plan: Plan
    existing: dict[str, int]
    refusals: dict[str, str]
    failing_cells: int
    missing_data: dict[str, list[str]]


def outlook_of(plan: Plan, context: Context) -> Outlook:
    """Compare the cells of a plan with the results folder, without computing or changing anything."""
    refusals: dict[str, str] = {}
    for cell in plan.todo:
        has_run = cell.config is not None and not cell.reason and cell.run not in refusals
        if has_run and (reason := refusal(context.results, cell)) is not None:
            refusals[cell.run] = reason
    # The costs of a backbone do not depend on its weights.
    failing = {cell.hash for cell in plan.todo if cell.run in refusals and cell.kind != "cost"}
    excluded = failing | {cell.hash for cell in plan.repeated}
    applicable = [cell for cell in plan.todo if cell.hash not in excluded and not cell.reason]
    existing = [cell for cell in applicable if _has_unrecorded_results(cell, context)]
    removed_hashes = failing | {cell.hash for cell in existing}
    remaining_plan = replace(
        plan,
        states={**plan.states, **{cell.hash: "done" for cell in existing}},
        todo=tuple(cell for cell in plan.todo if cell.hash not in removed_hashes),
    )
    counts = Counter(cell.kind for cell in existing)
    by_kind: dict[str, int] = {kind: counts[kind] for kind in KINDS if counts[kind]}
    missing_data = _missing_data(remaining_plan, context.data_dir)
    return Outlook(remaining_plan, by_kind, refusals, len(failing), missing_data)


def _missing_data(plan: Plan, data_dir: Path | None) -> dict[str, list[str]]:
    """Return the tasks that have cells to do but whose data cannot be read, by reason."""
    tasks: dict[str, list[str]] = {}
    for task, cell in {cell.task: cell for cell in plan.todo if cell.reason is None}.items():
        try:
            cell.read_data(data_dir)
        except DataError as error:
            tasks.setdefault(str(error), []).append(task)
        except IclbenchError:  # the sweep will report it
            continue
    return tasks


def check_data(plan: Plan, context: Context) -> None:
    """Raise `UsageError` if the data of a run of the grid have changed since its training.

    Data that cannot be read raise no error here; the cells that need them report it.
    """
    families: dict[str, Family] = {}
    for cell in plan.cells:
        if cell.kind != "train" or cell.config is None or cell.reason is not None:
            continue
        key = json.dumps([cell.task, cell.task_config.parameters, cell.task_config.files])
        family = families[key] = families.get(key) or cell.task_config.build(context.data_dir)
        run = Run(context.results / "runs" / cell.run)
        if not family.needs_data or not run.is_started:
            continue
        try:
            family.check_data(run.config.task.learned)
        except DataChangedError as error:
            raise UsageError(f"run '{run.name}': {error}", code=error.code) from error
        except DataError:
            continue


def refusal(results: Path, cell: GridCell) -> str | None:
    """Return why a cell's run cannot be trained in its folder, for example because the folder holds a run with other
    settings. Return None if the run can be trained."""
    assert cell.config is not None
    run = Run(results / "runs" / cell.run)
    try:
        check_same_run(run, cell.config)
    except SettingsChangedError as error:
        return conflict_message(error)
    except IclbenchError as error:
        return str(error)
    return None


def conflict_message(error: SettingsChangedError) -> str:
    """Return the error message, with advice, for a run folder that holds a run with other settings."""
    return (
        f"{error.run.path} holds a run of this name that was trained with different settings ({error.difference}); "
        f"move it away or delete it with iclbench rm {error.run.name}, then run the same command again"
    )


def _has_unrecorded_results(cell: GridCell, context: Context) -> bool:
    """Whether a training run or an evaluation was computed outside of a sweep, so that only the row of its cell is
    missing; False for other cells. `CellStore.state` gives the state of a cell with a row."""
    if cell.kind == "train":
        return Run(context.results / "runs" / cell.run).is_intact
    return computes_scores(cell) and _has_tables_of_all_prompt_sets(cell, context)


def _has_tables_of_all_prompt_sets(cell: GridCell, context: Context) -> bool:
    """Whether the tables of an evaluation are done on each of its prompt sets (`iclbench.evaluation.cells.is_done`)."""
    results, data_dir = context.results, context.data_dir
    prompt_set_count = len(cell.options["shifts"]) + len(cell.options["evaluators"])
    folders = results.glob(f"tables/{cell.group}-*")
    if sum((folder / f"{cell.run}.values.parquet").is_file() for folder in folders) < prompt_set_count:
        return False  # a quick check, before episodes are drawn, weights are read and torch is imported
    from iclbench.evaluation import contestants
    from iclbench.evaluation.cells import is_done
    from iclbench.evaluation.evaluate import prompt_sets

    try:
        family = cell.task_config.build_held_out(data_dir)
        sets = prompt_sets(
            cell.task_config,
            cell.preset,
            cell.options["shifts"],
            cell.options["evaluators"],
            cell.options["seed"],
            data_dir,
            family,
        )
        if cell.baseline is not None:
            return all(
                is_done(results, contestants.baselines(prompts, [cell.baseline])[0], prompts) for prompts in sets
            )
        run = contestants.backbone(Run(results / "runs" / cell.run), data_dir=data_dir)
        models = [run, *(contestants.with_loops(run, number) for number in cell.options.get("loops", ()))]
        return all(is_done(results, model, prompts) for prompts in sets for model in models)
    except IclbenchError:  # the sweep will report it
        return False
