"""Evaluate runs and their baselines with a progress bar, on prompts of their task, of another task or of a table."""

from __future__ import annotations

import re
from pathlib import Path

from iclbench.cli.options import example_count
from iclbench.cli.terminal import say, step_bar
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import DataError, UsageError
from iclbench.core.memory import REAL_TABLE_REMEDY, memory_advice
from iclbench.deep_thinking.methods import Method
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.evaluate import evaluate_run as run_evaluation
from iclbench.evaluation.evaluate import evaluators_of, shifts_of
from iclbench.evaluation.full_table import remarks as remarks_on
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Family
from iclbench.families.tabular.table_file import Table, read_table
from iclbench.families.tabular.tabular import Tabular
from iclbench.store.runs import Run
from iclbench.sweep.reference import PackedBaselines

# The baselines for a user's table.
TABLE_BASELINES = (
    "zero",
    "mean",
    "least-squares",
    "ridge-1e-1",
    "lasso-1e-2",
    "knn-3",
    "gp-rbf",
    "mlp",
    "decision-tree-2",
    "xgboost",
)


def evaluate_run(
    context: Context,
    run: Run,
    shift_names: list[str],
    extrapolate: int | str | None,
    seed: int = 0,
    replacement: tuple[TaskConfig, Family | None] | None = None,
    baseline_names: list[str] | None = None,
    prompt_set_ids: list[str] | None = None,
    evaluator_names: list[str] | None = None,
    method: Method | None = None,
    fresh: bool = False,
    remarks: dict[str, None] | None = None,
    data_changed: bool = False,
) -> int:
    """Evaluate one run with a progress bar, on prompts of its task or of a `replacement`; returns the number of failed
    cells.

    Adds the ids of the prompt sets to `prompt_set_ids`, and remarks on their scores to `remarks`. The other arguments
    are those of `evaluation.evaluate.evaluate_run`.
    """
    ids_with_remarks: set[str] = set()
    longest = None if extrapolate is None else example_count(str(extrapolate), run.config.task.points)
    task, family = replacement or (run.config.task, None)
    shifts = shifts_of(run, shift_names, longest, task)
    evaluators = [] if family else evaluators_of(run, evaluator_names or [], task)
    model_count = 1 if method is None else 2
    baseline_count = len(baseline_names) if baseline_names else len({*task.oracles, *task.baselines})
    failed_count = done_count = 0
    with step_bar(f"evaluate {run.name}", (len(shifts) + len(evaluators)) * (model_count + baseline_count)) as update:

        def show_start(contestant: PredictorContestant, prompts: PromptSet) -> None:
            update(done_count, f"{prompts.evaluation}: {contestant.name}")

        for cell in run_evaluation(
            context,
            run,
            shifts,
            evaluators,
            seed=seed,
            task=task,
            family=family,
            baseline_names=baseline_names,
            method=method,
            lookup=None if fresh else PackedBaselines(context.results),
            fresh=fresh,
            on_start=show_start,
            data_changed=data_changed,
        ):
            done_count += 1
            has_remarks = remarks is not None and task.family in ("tabular", "real-tables")
            if remarks is not None and has_remarks and cell.prompts.id not in ids_with_remarks:
                ids_with_remarks.add(cell.prompts.id)
                if task.family == "tabular":
                    update(done_count, "XGBoost on all rows except the targets")
                with memory_advice(REAL_TABLE_REMEDY):
                    remarks.update(dict.fromkeys(remarks_on(cell.prompts)))
            if prompt_set_ids is not None and cell.prompts.id not in prompt_set_ids:
                prompt_set_ids.append(cell.prompts.id)
            if cell.reason:
                failed_count += 1
                say(f"failed: {cell.contestant.run} on {cell.prompts.id}: {cell.reason}")
        update(done_count, "")
    return failed_count


def read_user_table(csv: Path, target: str | None, header: bool | None) -> Table:
    """Read the user's table."""
    with memory_advice(REAL_TABLE_REMEDY):
        return read_table(csv, target, header)


def replacement_task(
    run: Run, table: Table | None, csv: Path | None, task: str | None
) -> tuple[TaskConfig, Family | None] | None:
    """The task that replaces the run's task: a user's table, or a card at the preset of the run; None for the run's
    task."""
    if table is not None and csv is not None:
        return table_task(run, table, csv)
    return None if task is None else (resolve_task(task, run.config.preset)[0], None)


def table_task(run: Run, table: Table, csv: Path) -> tuple[TaskConfig, Family]:
    """The user's table as a task: episodes with the run's dimension and length, outputs at the scale of the run's
    training, and every kind of baseline."""
    trained_task = run.config.task
    if trained_task.head in ("categorical", "event"):
        predictions = "class labels" if trained_task.head == "categorical" else "events"
        raise UsageError(
            f"run '{run.name}' predicts {predictions}; --csv needs runs of regression tasks", code="not-applicable"
        )
    trained_family = trained_task.build()
    if trained_family.x_shape is not None:
        raise UsageError(
            f"run '{run.name}' reads images, not rows of features; --csv needs runs of tasks with features",
            code="not-applicable",
        )
    if trained_family.y_dim > 1:
        raise UsageError(
            f"run '{run.name}' predicts {trained_family.y_dim} numbers; --csv needs runs that predict one number",
            code="not-applicable",
        )
    parameters = Tabular.Parameters(dim=trained_family.x_dim, variance=trained_family.normaliser)
    if table.rows < trained_task.points + 1:
        raise DataError(
            f"{csv} has {table.rows} rows; run '{run.name}' was trained with {trained_task.points} examples, so an "
            f"episode needs {trained_task.points + 1}"
        )
    family = Tabular(parameters, tables=[table])
    stem = re.sub(r"[^a-z0-9]+", "-", csv.name.lower().split(".")[0]).strip("-")[:40] or "table"
    changes = {
        "name": f"csv-{stem}",
        "family": "tabular",
        "parameters": parameters.model_dump(mode="json"),
        "files": {},
        "learned": {},
        "baselines": list(TABLE_BASELINES),
        "oracles": [],
        "shifts": [],
        "evaluators": [],
        "published": [],
    }
    return trained_task.model_copy(update=changes), family
