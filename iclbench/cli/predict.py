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
            help="Target column of --train: its name, or its number from 1 if no column has a number as its name.",
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
            help="classification or regression (default: as RUN; without RUN: classification for text, Boolean values, "
            "and integers with at most 10 distinct values in at least 3 rows each on average; else regression).",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether the first lines of the CSV files name the columns."),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(
            "--permutations",
            min=1,
            help="Number of row orders to average predictions over (default: 4 for causal models, 1 for set models).",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, max=2**32 - 1, help="Seed for the random choice of rows, columns and orders."),
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
