"""`iclbench eval [RUN...]`: score runs and their baselines on the frozen prompt sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    example_count,
    finished_runs,
    selected_runs,
    set_up_torch,
)
from iclbench.core.errors import UsageError


def command(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.runs,
            help="Runs to evaluate (default: all finished runs; with --csv, all that can read the table and, if there "
            "are none, a run in the package that predicts this kind of target).",
        ),
    ] = None,
    extrapolate: Annotated[
        str | None,
        typer.Option(
            "--extrapolate",
            help="Also evaluate with up to N examples; 4x is four times the training length (default without N: 4x).",
            metavar="[N]",
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            "--shift",
            autocompletion=completion.shifts,
            help="Also evaluate under this shift, a combination (isotropic+noisy-1, orthants+points-N), or all shifts "
            "of the card (all). May be repeated.",
        ),
    ] = None,
    evaluator: Annotated[
        list[str] | None,
        typer.Option(
            "--evaluator", help="Test of the family (icl, iwl, ...), instead of the tests on the card. May be repeated."
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            autocompletion=completion.baselines,
            help="Baseline to evaluate instead of those on the card: a name, a card, or a class with fit and predict "
            "(sklearn.svm:SVR). May be repeated.",
        ),
    ] = None,
    loops: Annotated[
        list[int] | None,
        typer.Option(
            "--loops",
            min=1,
            max=1000,
            help="Also evaluate a model with backbone.loops with N iterations of the same weights. May be repeated.",
            metavar="N",
        ),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="icl, or deep-thinking, which also evaluates icl.")] = "icl",
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--override",
            help="Setting of the method (method.eta=0.01, method.passes=5, ...), of the task of --task "
            "(task.KEY=VALUE), or, without --task, the current location of the runs' data (task.path=FILE). May be "
            "repeated.",
        ),
    ] = None,
    data_changed: Annotated[
        bool,
        typer.Option(
            "--data-changed",
            help="Evaluate runs even if their data have changed since training. Leaderboards omit these results.",
        ),
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            autocompletion=completion.tasks,
            help="Evaluate on the prompts of this task instead of the training task.",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Evaluate on your own table (.csv, .csv.gz, .parquet, .arff).")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Target column of --csv: its name, or its position (from 1) if no column name is a number.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Read the first line of --csv as the names of the columns (--header) or as a row of values "
            "(--no-header). Default: as names, unless it is a row of numbers.",
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            "--points",
            min=1,
            max=1000,
            help="Number of rows of --csv in a context (default: as in training, but at most four fifths of the rows).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Evaluation seed.")] = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute baselines even if the reference results contain them.")
    ] = False,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Score runs and the task's baselines on frozen prompts."""
    from iclbench.cli.terminal import out, say
    from iclbench.config.cards import load_baseline, load_task
    from iclbench.config.resolution import parse_overrides
    from iclbench.core.context import Context
    from iclbench.core.signals import raise_if_ctrl_c
    from iclbench.core.trust import UntrustedError, trust_typed
    from iclbench.deep_thinking.methods import method as method_of
    from iclbench.registry import is_target
    from iclbench.store.runs import CodeChangedError

    if csv is not None and (task or shift or evaluator or extrapolate is not None):
        options = {"--task": task, "--shift": shift, "--evaluator": evaluator, "--extrapolate": extrapolate}
        names = " and ".join(name for name, value in options.items() if value)
        hint = " (the run determines whether the target is a class or a number)" if task else ""
        raise UsageError(
            f"--csv cannot be used with {names}, because it evaluates on your table; remove {names}{hint}",
            code="conflict",
        )
    if (csv is None) != (target is None):
        raise UsageError("--csv FILE and --target COLUMN must be used together", code="missing-value")
    if header is not None and csv is None:
        raise UsageError("--header and --no-header need --csv FILE", code="missing-value")
    if points is not None and csv is None:
        raise UsageError("--points needs --csv FILE; for other tasks use --extrapolate", code="missing-value")
    if task is not None:
        load_task(task)  # report a mistyped name before the evaluation
    overrides = parse_overrides(override or [], ("method", "task"))
    context_method, task_changes = method_of(method, overrides.get("method")), overrides.get("task", {})
    if task_changes and csv is not None:
        raise UsageError(
            "-o task.KEY changes a task, and cannot be used with --csv, which evaluates on your table", code="conflict"
        )
    runs = [] if csv is not None and not run and not finished_runs(results) else selected_runs(results, run)
    for name in baseline or []:
        if is_target(name):
            trust_typed(name)
        load_baseline(name)
    if extrapolate is not None:
        example_count(extrapolate, 1)
    context = Context(results, data_dir, set_up_torch(device, threads))
    from iclbench.cli import eval_runs, summary

    table = None if csv is None else eval_runs.read_user_table(csv, str(target), header)
    if table is not None and not run:
        runs = [each for each in runs if eval_runs.can_read_table(each, table)]
        if not runs:
            run = [table.packaged_run()]
            runs = selected_runs(results, run)
    failed_count = untrusted_count = unfit_count = 0
    prompt_set_ids: list[str] = []
    changed_code: list[str] = []
    remarks: dict[str, None] = {}
    for trained_run in runs:
        try:
            replacement = eval_runs.replacement_task(trained_run, table, points, task, task_changes)
            failed_count += eval_runs.evaluate_run(
                context,
                trained_run,
                shift or [],
                extrapolate,
                seed,
                replacement,
                baseline,
                prompt_set_ids,
                evaluator,
                None if context_method.name == "icl" else context_method,
                fresh,
                None if json else remarks,
                data_changed,
                list(dict.fromkeys(loops or [])),
            )
        except UsageError as error:
            raise_if_ctrl_c(error)
            if run and len(runs) == 1:
                raise
            untrusted_count += isinstance(error, UntrustedError)
            failed_count += 1  # continue with the other runs
            unfit_count += error.code == "not-applicable"
            changed_code += [trained_run.name] * isinstance(error, CodeChangedError)
            say(f"skipped run '{trained_run.name}': {error}")
    summary.print_summary(results, prompt_set_ids, json, omitted_runs=changed_code)
    for line in remarks:
        out.print(line)
    if retryable_count := failed_count - untrusted_count - unfit_count:
        say(f"{retryable_count} failed; the same command computes only these again")
    if failed_count:
        raise typer.Exit(1)
