"""`iclbench eval [RUN...]`: scores runs and their baselines on the frozen prompt sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust


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
