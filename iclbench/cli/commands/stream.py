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
        typer.Option(
            "--csv", help="File of points x1,...,y1,... or events time,mark; a query has ? for y, or ?,?; - is stdin."
        ),
    ] = "-",
    state: Annotated[Path | None, typer.Option("--state", help="Go on from a state that --save has written.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            help="Write the state here at the end, also after Ctrl-C, SIGTERM or a bad line. Only a saved state is "
            "replaced.",
        ),
    ] = None,
    related: Annotated[
        list[Path] | None,
        typer.Option("--related", help="A related dataset, same columns, for models that use them; may be repeated."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, help="Only the last so many points count; of models that forget points."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--start", help="Time 0 of events, or first: that of the first line, which then is no event."),
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
    """Learn points or events and answer queries line by line: a query sees all before it. In constant memory where the
    backbone allows (cmanp, cnp, cmhp, recurrent ones)."""
