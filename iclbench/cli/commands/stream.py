"""`iclbench stream RUN`: a trained model that learns points line by line and answers queries as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust


def stream(
    run: Annotated[str, typer.Argument(autocompletion=completion.runs, help="A finished run.")],
    csv: Annotated[
        str,
        typer.Option("--csv", help="File with columns x1,...,y1,...: a point, or a query where y is ?; - is stdin."),
    ] = "-",
    state: Annotated[Path | None, typer.Option("--state", help="Go on from a state that --save has written.")] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the state here at the end, also after Ctrl-C, SIGTERM or a bad line."),
    ] = None,
    related: Annotated[
        list[Path] | None,
        typer.Option("--related", help="A related dataset, same columns, for models that use them; may be repeated."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, help="Only the last so many points count; of models that forget points."),
    ] = None,
    float64: Annotated[
        bool, typer.Option("--float64", help="Compute in double precision; a state so saved is read with it, too.")
    ] = False,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Learn points and answer queries line by line: a query sees all points before it. In constant memory where the
    backbone allows (cmanp, cnp, recurrent ones)."""
