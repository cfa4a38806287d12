"""`iclbench predict [RUN]`: predict the target of new rows from the rows of a user's table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust, set_up_torch
from iclbench.core.context import Context
from iclbench.core.errors import UsageError


def command(
    train: Annotated[
        Path, typer.Option("--train", help="Table with the target (.csv, .csv.gz, .parquet, .arff).", metavar="FILE")
    ],
    new: Annotated[Path, typer.Option("--new", help="Table with the rows to predict.", metavar="FILE")],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="Target column of --train: its name, or its position (from 1) if no column name is a number.",
        ),
    ],
    run: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.runs,
            help="A finished run (default: a run in the package that predicts this kind of target).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="CSV file for the predictions (default: stdout).", metavar="FILE")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="KIND",
            help="What to predict: classification (a label of --target) or regression (a number). Default: the kind of "
            "RUN. Without RUN: classification for text, for Boolean values, and for integers with at most 10 distinct "
            "values and at least 3 times as many rows; otherwise regression.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Read the first line of each CSV file as the names of the columns (--header) or as a row of values "
            "(--no-header). Default: as names, unless it is a row of numbers.",
        ),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(
            "--permutations",
            min=1,
            help="Average the predictions over N random orders of the rows of --train (default: 4 for causal models, 1 "
            "for set models, which do not depend on the order).",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            max=2**32 - 1,
            help="Seed of random choices: the rows and columns of a large --train that the model reads, and their "
            "order. The same seed gives the same predictions.",
        ),
    ] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Predict the target of new rows from the rows of your table, with intervals or probabilities."""
    if task not in (None, "classification", "regression"):
        raise UsageError(f"--task {task}: write classification or regression", code="bad-value")
    if header is not None and not any(".csv" in path.name.lower() for path in (train, new)):
        raise UsageError("--header and --no-header are for .csv files; remove the option", code="conflict")
    context = Context(results, data_dir, set_up_torch(device, threads))
    from iclbench.cli import predict_run

    predict_run.check_writable(out)
    tables = predict_run.read_tables(train, new, target, header)
    predict_run.predict(context, tables, run, task, permutations, seed, out, as_json=json)
