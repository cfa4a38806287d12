"""Evaluate runs and their baselines with a progress bar, on prompts from their own task, another task or a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from iclbench.cli.options import example_count
from iclbench.cli.terminal import say, step_bar
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import DataError, UsageError
from iclbench.core.files import write_text
from iclbench.core.memory import REAL_TABLE_REMEDY, memory_advice
from iclbench.deep_thinking.methods import Method
from iclbench.evaluation.all_rows import FITTED_ON_ALL_ROWS, all_rows_baselines
from iclbench.evaluation.contestants import PredictorContestant, reads_any_rows
from iclbench.evaluation.evaluate import evaluate_run as run_evaluation
from iclbench.evaluation.evaluate import evaluators_of, shifts_of
from iclbench.evaluation.full_table import remarks as remarks_on
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Family
from iclbench.families.tabular.encoder import MAX_LINES, TargetKind, encode_target
from iclbench.families.tabular.frame import read_labelled_frame, stem
from iclbench.families.tabular.real_tables import MIN_TARGETS
from iclbench.families.tabular.table_set import LabelledTable
from iclbench.families.tabular.user_table import MAX_TARGETS, UserTable, context_rows
from iclbench.store.runs import Run, write_errors
from iclbench.store.shipped import TABLE_RUNS
from iclbench.sweep.reference import PackedBaselines

# The baselines for a user's table, by the kind of its target.
TABLE_BASELINES = {
    "number": ("mean", "ridge-cv", "knn-3", "gp-rbf", "forest", "xgboost-default"),
    "class": ("majority", "logistic-regression", "knn-classifier", "forest-classifier", "xgboost-classifier"),
}


@dataclass(frozen=True, eq=False)
class UserFile:
    """A user's table. The kind of its target (number or class) is not fixed, since it depends on the run."""

    path: Path
    columns: pd.DataFrame
    target: pd.Series

    def packaged_run(self) -> str:
        """Return the name of the run in the package that predicts this kind of target."""
        return TABLE_RUNS[encode_target(self.target).kind]

    @cache  # noqa: B019
    def labelled(self, kind: TargetKind) -> LabelledTable:
        """Return the table with the target as numbers or as classes."""
        try:
            table = LabelledTable.of(stem(self.path), self.columns, self.target, kind, self.path)
            table.check_varies()
        except DataError as error:
            raise DataError(f"{self.path}: {error}", code=error.code) from None
        return table


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
    loops: Sequence[int] = (),
) -> int:
    """Evaluate one run on prompts from its own task or from `replacement`. Return the number of failed cells.

    The ids of the prompt sets are added to `prompt_set_ids`, and remarks on their scores to `remarks`. The other
    arguments are passed to `evaluation.evaluate.evaluate_run`.
    """
    ids_with_remarks: set[str] = set()
    longest = None if extrapolate is None else example_count(str(extrapolate), run.config.task.points)
    task, family = replacement or (run.config.task, None)
    shifts = shifts_of(run, shift_names, longest, task)
    evaluators = [] if family else evaluators_of(run, evaluator_names or [], task)
    model_count = (1 if method is None else 2) + len(loops)
    names = baseline_names or list({*task.oracles, *task.baselines})
    baseline_count = len(names) + isinstance(family, UserTable) * len({*names} & {*FITTED_ON_ALL_ROWS})
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
            loops=loops,
            lookup=None if fresh else PackedBaselines(context.results),
            fresh=fresh,
            on_start=show_start,
            data_changed=data_changed,
            further=(lambda prompts: all_rows_baselines(prompts, baseline_names or task.baselines))
            if isinstance(family, UserTable)
            else None,
        ):
            done_count += 1
            has_remarks = remarks is not None and task.family in ("tabular", "real-tables")
            if remarks is not None and has_remarks and cell.prompts.id not in ids_with_remarks:
                ids_with_remarks.add(cell.prompts.id)
                if task.family == "tabular":
                    update(done_count, "XGBoost on all rows except the targets")
                with memory_advice(REAL_TABLE_REMEDY):
                    remarks.update(dict.fromkeys(remarks_on(cell.prompts)))
            if isinstance(family, UserTable):
                encoding = context.results / "tables" / cell.prompts.id / "encoding.json"
                with write_errors(context.results):
                    write_text(encoding, json.dumps(family.encoding(), indent=2, sort_keys=True) + "\n")
                if remarks is not None and len(family.table.encoder.steps) > MAX_LINES:
                    remarks[f"the encoding of all columns is in {encoding}"] = None
            if prompt_set_ids is not None and cell.prompts.id not in prompt_set_ids:
                prompt_set_ids.append(cell.prompts.id)
            if cell.reason:
                failed_count += 1
                say(f"failed: {cell.contestant.run} on {cell.prompts.id}: {cell.reason}")
        update(done_count, "")
    return failed_count


def read_user_table(csv: Path, target: str, header: bool | None) -> UserFile:
    """Read a user's table, and separate the target column from the other columns."""
    with memory_advice(REAL_TABLE_REMEDY):
        return UserFile(csv, *read_labelled_frame(csv, header, target))


def replacement_task(
    run: Run, file: UserFile | None, points: int | None, task: str | None, changes: Mapping[str, Any]
) -> tuple[TaskConfig, Family | None] | None:
    """Return the task that replaces the run's own task: a user's table, a card at the run's preset with the user's
    changes, or the run's own task with other locations of its data. Return None if nothing is replaced."""
    if file is not None:
        return table_task(run, file, points)
    if task is not None:
        return resolve_task(task, run.config.preset, changes)[0], None
    return (run.config.task.with_files(changes), None) if changes else None


def can_read_table(run: Run, file: UserFile) -> bool:
    """Return whether a run can be evaluated on a table. If it cannot, print why."""
    try:
        _table_for(run, file)
    except UsageError as error:
        if error.code != "not-applicable":
            return True  # the evaluation reports the error
        say(f"skipped run '{run.name}': {error}")
        return False
    return True


def _table_for(run: Run, file: UserFile) -> tuple[LabelledTable, Family]:
    """Return the table with the kind of target that the run predicts, and the family of the run.

    Raises:
        UsageError: the run does not read rows of features, or does not predict such a target.
    """
    trained_task = run.config.task
    if trained_task.head == "event":
        raise UsageError(f"run '{run.name}' predicts events; --csv needs a run with features", code="not-applicable")
    trained_family = trained_task.build()
    if trained_family.x_shape is not None or not trained_family.x_dim:
        inputs = "images" if trained_family.x_dim else "sequences"
        raise UsageError(
            f"run '{run.name}' reads {inputs}, not rows of features; --csv needs runs of tasks with features",
            code="not-applicable",
        )
    if trained_family.y_dim > 1:
        raise UsageError(
            f"run '{run.name}' predicts {trained_family.y_dim} numbers; --csv needs runs that predict one number",
            code="not-applicable",
        )
    kind: TargetKind = "number" if trained_family.classes is None else "class"
    table = file.labelled(kind)
    if trained_family.classes is not None and table.classes > trained_family.classes:
        raise DataError(
            f"{file.path}: the target has {table.classes} classes, and run '{run.name}' predicts at most "
            f"{trained_family.classes}; merge rare classes, or use another run",
            code="not-applicable",
        )
    return table, trained_family


def table_task(run: Run, file: UserFile, points: int | None = None) -> tuple[TaskConfig, UserTable]:
    """Return the user's table as a task for a run.

    Its prompts are splits of the table, encoded for the run's inputs and outputs. Its baselines depend on the kind of
    target.

    Args:
        run: the run.
        file: the table.
        points: number of rows in a context (default: as in training, if the table has enough rows).
    """
    table, trained_family = _table_for(run, file)
    trained_task, kind, model = run.config.task, table.kind, run.load()
    points = context_rows(table, trained_task.points, points, reads_any_rows(model), run.name)
    parameters = UserTable.Parameters(
        kind=kind,
        classes=trained_family.classes or 10,
        dim=max(1, len(table.encoder.names)) if model.reads_any_columns else trained_family.x_dim,
        # A fifth of the rows are targets. The baselines that are fitted on all other rows can then read many more rows
        # than the context has.
        targets=min(MAX_TARGETS, max(MIN_TARGETS, table.rows // 5)),
        variance=trained_family.normaliser,
    )
    changes = {
        "name": f"csv-{re.sub(r'[^a-z0-9]+', '-', stem(file.path).lower()).strip('-')[:40] or 'table'}",
        "family": "real-tables",
        "parameters": parameters.model_dump(mode="json"),
        "question": "targets",
        "points": points,
        "files": {},
        "learned": {},
        "baselines": list(TABLE_BASELINES[kind]),
        "oracles": [],
        "shifts": [],
        "evaluators": [],
        "published": [],
    }
    return trained_task.model_copy(update=changes), UserTable(parameters, table)
