"""`iclbench eval [RUN...]`: scores runs and their baselines on the frozen prompt sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import (
    RESULTS,
    DataDir,
    Device,
    Json,
    MaxBytes,
    Results,
    Threads,
    Trust,
    chosen_runs,
    set_up_torch,
)

if TYPE_CHECKING:
    from iclbench.config.resolution import TaskConfig
    from iclbench.config.runs import Run
    from iclbench.deep_thinking.methods import Method
    from iclbench.evaluation.contestants import PredictorContestant
    from iclbench.evaluation.prompts import PromptSet
    from iclbench.families.base import Family

# What stands beside a model on a user's own table.
_TABLE_BASELINES = (
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


def evaluate(
    run: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=completion.runs, help="Runs to evaluate; none: all finished ones."),
    ] = None,
    extrapolate: Annotated[
        str | None,
        typer.Option(
            "--extrapolate",
            help="Also evaluate up to N examples, or to 4x: 4 times the trained length, as without N.",
            metavar="[N]",
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            "--shift",
            autocompletion=completion.shifts,
            help="Also evaluate under this shift; several at once: isotropic+noisy-1, orthants+points-N (N examples). "
            "'all': every one of the card.",
        ),
    ] = None,
    evaluator: Annotated[
        list[str] | None,
        typer.Option("--evaluator", help="Only these tests of the family (icl, iwl, ...) instead of the card's."),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline", autocompletion=completion.baselines, help="Only these baselines instead of the card's."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="Also with the context taken in by deep-thinking; icl: only as it is.")
    ] = "icl",
    override: Annotated[
        list[str] | None, typer.Option("-o", "--override", help="method.key=value: method.eta, method.passes, ...")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            autocompletion=completion.tasks,
            help="Evaluate on the prompts of this task instead of the one that was trained.",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Evaluate on your own table (.csv, .csv.gz, .parquet).")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="Column of --csv to be predicted.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Evaluation seed.")] = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute baselines also where the reference results have them.")
    ] = False,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Score runs on frozen prompts, the task's baselines always beside them."""
    from iclbench.cli.summary import print_summary
    from iclbench.cli.terminal import out, say
    from iclbench.config.cards import load_baseline, load_task
    from iclbench.config.resolution import resolve_task
    from iclbench.config.runs import CodeChangedError
    from iclbench.core.errors import UsageError
    from iclbench.core.signals import heed_ctrl_c

    if (csv is None) != (target is None):
        raise UsageError("--csv FILE and --target COLUMN go together")
    if csv is not None and (task or shift or evaluator or extrapolate is not None):
        raise UsageError("--csv evaluates on your table as it is; drop --task, --shift, --evaluator and --extrapolate")
    if task is not None:
        load_task(task)  # a mistyped name fails before anything is computed, as of the baselines
    way = _method(method, override or [])
    runs = chosen_runs(results, run)
    for name in baseline or []:
        load_baseline(name)
    if extrapolate is not None:
        _examples(extrapolate, 1)
    chosen = set_up_torch(device, threads)
    failed = 0
    evaluated: list[str] = []
    edited: list[str] = []
    remarks: dict[str, None] = {}
    for each in runs:
        try:
            other: tuple[TaskConfig, Family | None] | None = None
            if csv is not None and target is not None:
                other = _own_table(each, csv, target)
            elif task is not None:
                other = resolve_task(task, each.config.preset)[0], None
            failed += evaluate_run(
                results,
                each,
                shift or [],
                extrapolate,
                chosen,
                seed,
                data_dir,
                other,
                baseline,
                evaluated,
                evaluator,
                way,
                fresh,
                None if json else remarks,
            )
        except UsageError as error:
            heed_ctrl_c(error)
            if run and len(runs) == 1:
                raise
            failed += 1  # the others go on
            edited += [each.name] * isinstance(error, CodeChangedError)
            say(f"skipped run '{each.name}': {error}")
    print_summary(results, evaluated, json, without=edited)
    for line in remarks:
        out.print(line)
    if failed:
        say(f"{failed} failed; the same command tries them again")
        raise typer.Exit(1)


def evaluate_run(
    results: Path,
    run: Run,
    shift: list[str],
    extrapolate: int | str | None,
    device: str,
    seed: int = 0,
    data_dir: Path | None = None,
    other: tuple[TaskConfig, Family | None] | None = None,
    baseline: list[str] | None = None,
    evaluated: list[str] | None = None,
    evaluator: list[str] | None = None,
    method: Method | None = None,
    fresh: bool = False,
    remarks: dict[str, None] | None = None,
) -> int:
    """Evaluate one run with a progress bar, on prompts of its own task or of an `other`; returns the number of failed
    cells and notes the prompt sets, and what must be known of them to read their scores."""
    from iclbench.cli.terminal import say, step_bar
    from iclbench.core.memory import IN_REAL_TABLES, advised
    from iclbench.evaluation.evaluate import evaluate_run as run_evaluation
    from iclbench.evaluation.evaluate import evaluators_of, shifts_of
    from iclbench.evaluation.whole_table import remarks as remarks_on
    from iclbench.sweep.reference import Reference

    noted: set[str] = set()
    beyond = None if extrapolate is None else _examples(str(extrapolate), run.config.task.points)
    task, family = other or (run.config.task, None)
    shifts = shifts_of(run, shift, beyond, task)
    tests = [] if family else evaluators_of(run, evaluator or [], task)
    models = 1 if method is None else 2
    size = len(baseline) if baseline else len({*task.oracles, *task.baselines})
    failed = done = 0
    with step_bar(f"evaluate {run.name}", (len(shifts) + len(tests)) * (models + size)) as update:

        def begins(contestant: PredictorContestant, prompts: PromptSet) -> None:
            update(done, f"{prompts.evaluation}: {contestant.name}")

        for cell in run_evaluation(
            results,
            run,
            shifts,
            tests,
            seed=seed,
            device=device,
            data_dir=data_dir,
            task=task,
            family=family,
            baseline_names=baseline,
            method=method,
            lookup=None if fresh else Reference(results),
            fresh=fresh,
            begins=begins,
        ):
            done += 1
            if remarks is not None and task.family == "tabular" and cell.prompts.id not in noted:
                noted.add(cell.prompts.id)
                update(done, "XGBoost on all rows but the targets")
                with advised(IN_REAL_TABLES):
                    remarks.update(dict.fromkeys(remarks_on(cell.prompts)))
            if evaluated is not None and cell.prompts.id not in evaluated:
                evaluated.append(cell.prompts.id)
            if cell.reason:
                failed += 1
                say(f"failed: {cell.contestant.run} on {cell.prompts.id}: {cell.reason}")
        update(done, "")
    return failed


def _method(name: str, overrides: list[str]) -> Method | None:
    """The method of this name with what `-o` says of it; None where the context is taken in as it is."""
    from iclbench.deep_thinking.methods import method_as_typed

    chosen = method_as_typed(name, overrides)
    return None if chosen.name == "icl" else chosen


def _examples(extrapolate: str, trained: int) -> int:
    """A number of examples, `160`, or of trained lengths, `4x`."""
    from iclbench.core.errors import UsageError

    number = extrapolate.removesuffix("x")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(f"--extrapolate takes a number of examples (160, or 4x the trained), not {extrapolate!r}")
    return int(number) * (trained if number != extrapolate else 1)


def _own_table(run: Run, csv: Path, target: str) -> tuple[TaskConfig, Family]:
    """The user's table as a task of its own: episodes of the run's dimension and length, labels at the scale that the
    run was trained on, beside every kind of baseline."""
    import re

    from iclbench.core.errors import DataError
    from iclbench.core.memory import IN_REAL_TABLES, advised
    from iclbench.families.tabular.table_file import read_table
    from iclbench.families.tabular.tabular import Tabular

    trained = run.config.task
    scale = trained.build()
    parameters = Tabular.Parameters(dim=scale.x_dim, variance=scale.normaliser)
    with advised(IN_REAL_TABLES):
        table = read_table(csv, target)
    if table.rows < trained.points + 1:
        raise DataError(
            f"{csv} has {table.rows} rows; run '{run.name}' was trained with {trained.points} examples, so an episode "
            f"needs {trained.points + 1}"
        )
    family = Tabular(parameters, tables=[table])
    stem = re.sub(r"[^a-z0-9]+", "-", csv.name.lower().split(".")[0]).strip("-")[:40] or "table"
    frozen = {
        "name": f"csv-{stem}",
        "family": "tabular",
        "parameters": parameters.model_dump(mode="json"),
        "baselines": list(_TABLE_BASELINES),
        "oracles": [],
        "shifts": [],
        "evaluators": [],
        "published": [],
    }
    return trained.model_copy(update=frozen), family
