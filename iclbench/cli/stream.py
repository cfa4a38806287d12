"""`iclbench stream RUN`: read points, elements or events line by line with a trained model, and answer each query
immediately."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust, set_up_torch
from iclbench.core.errors import UsageError
from iclbench.core.file_errors import cannot_read
from iclbench.core.files import check_output_file, check_state_file


def command(
    run: Annotated[str, typer.Argument(autocompletion=completion.runs, help="A finished run.")],
    csv: Annotated[
        str,
        typer.Option(
            "--csv",
            help="File of points (x1,...,y1,...), elements of a stream (token, or y1,...) or events (time,mark), or - "
            "for stdin. A query has ? for every output.",
        ),
    ] = "-",
    state: Annotated[
        Path | None, typer.Option("--state", help="Continue from a state that was written with --save.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            help="Write the state to this file at the end, even after Ctrl-C, SIGTERM or an invalid line. An existing "
            "file is replaced only if it holds a state.",
        ),
    ] = None,
    related: Annotated[
        list[Path] | None,
        typer.Option(
            "--related",
            help="File of a related dataset with the same columns, if the model uses them. May be repeated.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=1,
            help="Use only the latest N points as the context. The model must be able to remove points.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start", help="Start time of the sequence, or `first` to take the first line as the start, not an event."
        ),
    ] = None,
    float64: Annotated[
        bool,
        typer.Option(
            "--float64",
            help="Compute in double precision. A saved state must be continued in the same precision.",
        ),
    ] = False,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Read points, elements or events and answer queries line by line. A query uses all earlier lines as its context.
    Memory is constant for backbones with a state of constant size (cmanp, cnp, cmhp, recurrent backbones)."""
    from iclbench.core.signals import sigterm_like_ctrl_c
    from iclbench.store.archives import find

    if state and related:
        raise UsageError(
            "--related cannot be used with --state: the state already has related datasets", code="conflict"
        )
    if state and start is not None:
        raise UsageError("--start cannot be used with --state: the state already has a start time", code="conflict")
    trained_run, path = find(results, run), None if csv == "-" else Path(csv)
    if save:
        check_output_file(save, "--save")
        check_state_file(save)
    with sigterm_like_ctrl_c(), _open_lines(path) as lines:
        backbone = trained_run.load(set_up_torch(device, threads), data_dir)
        from iclbench.cli.stream_run import answer_all, csv_line, event_clock, json_line

        if float64:
            backbone = backbone.double()
        clock = event_clock(trained_run, backbone, start)
        write = json_line if json else csv_line
        answer_all(backbone, lines, path, state, save, related or [], window, clock, write, header=not json)


@contextmanager
def _open_lines(path: Path | None) -> Iterator[io.TextIOBase]:
    """Open a file or standard input as lines. Bytes that are not valid UTF-8 are replaced, and are reported as invalid
    numbers."""
    if path is None:
        if sys.stdin is None:
            raise UsageError("standard input is closed; pass a file with --csv FILE", code="missing-value")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        yield cast(io.TextIOBase, sys.stdin)
        return
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise cannot_read(path, error, "pass --csv a file, or - for stdin") from error
    with file:
        yield file
