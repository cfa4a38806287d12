"""`iclbench eval [RUN...]`: scores runs and their baselines on the frozen prompt sets."""

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
    chosen_runs,
    examples,
    set_up_torch,
)
from iclbench.core.errors import UsageError


def command(
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
        list[str] | None,
        typer.Option(
            "-o",
            "--override",
            help="method.key=value: method.eta, method.passes, ...; task.path=FILE: where the runs' data are now.",
        ),
    ] = None,
    data_changed: Annotated[
        bool,
        typer.Option(
            "--data-changed",
            help="Score runs on data other than those that they were trained on; the rows are in no leaderboard.",
        ),
    ] = False,
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
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Column of --csv to be predicted: its name or, if no column is named by a number, its number from 1.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether the first line of --csv names the columns."),
    ] = None,
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
    from iclbench.cli.terminal import out, say
    from iclbench.config.cards import load_baseline, load_task
    from iclbench.config.resolution import parse_overrides
    from iclbench.core.context import Context
    from iclbench.core.signals import heed_ctrl_c
    from iclbench.core.trust import UntrustedError
    from iclbench.deep_thinking.methods import method as method_of
    from iclbench.store.runs import CodeChangedError

    if (csv is None) != (target is None):
        raise UsageError("--csv FILE and --target COLUMN go together")
    if header is not None and csv is None:
        raise UsageError("--header and --no-header are for --csv FILE")
    if csv is not None and (task or shift or evaluator or extrapolate is not None):
        raise UsageError("--csv evaluates on your table as it is; drop --task, --shift, --evaluator and --extrapolate")
    if task is not None:
        load_task(task)  # a mistyped name fails before anything is computed, as of the baselines
    overrides = parse_overrides(override or [], ("method", "task"))
    context_method, files = method_of(method, overrides.get("method")), overrides.get("task", {})
    if files and (csv is not None or task is not None):
        raise UsageError("-o task.path names the data of the runs' own task; drop --task and --csv")
    runs = chosen_runs(results, run)
    for name in baseline or []:
        load_baseline(name)
    if extrapolate is not None:
        examples(extrapolate, 1)
    context = Context(results, data_dir, set_up_torch(device, threads))
    from iclbench.cli import eval_runs, summary

    table = None if csv is None else eval_runs.read(csv, target, header)
    failed = untrusted = 0
    evaluated: list[str] = []
    edited: list[str] = []
    remarks: dict[str, None] = {}
    for each in runs:
        try:
            other = eval_runs.other_task(each, table, csv, task)
            if other is None and files:
                other = each.config.task.at(files), None
            failed += eval_runs.evaluate_run(
                context,
                each,
                shift or [],
                extrapolate,
                seed,
                other,
                baseline,
                evaluated,
                evaluator,
                None if context_method.name == "icl" else context_method,
                fresh,
                None if json else remarks,
                data_changed,
            )
        except UsageError as error:
            heed_ctrl_c(error)
            if run and len(runs) == 1:
                raise
            untrusted += isinstance(error, UntrustedError)
            failed += 1  # the others go on
            edited += [each.name] * isinstance(error, CodeChangedError)
            say(f"skipped run '{each.name}': {error}")
    summary.print_summary(results, evaluated, json, without=edited)
    for line in remarks:
        out.print(line)
    if again := failed - untrusted:
        say(f"{again} failed; the same command tries them again")
    if failed:
        raise typer.Exit(1)
