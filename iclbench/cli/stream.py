"""`iclbench stream RUN`: a trained model that learns points line by line and answers queries as they come."""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust, set_up_torch
from iclbench.core import limits
from iclbench.core.errors import DataError, UsageError
from iclbench.core.signals import held_back, sigterm_like_ctrl_c

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.core.predictor import State
    from iclbench.streaming.stream import Answer


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
    from iclbench.cli.terminal import say
    from iclbench.config.runs import find

    if state and related:
        raise UsageError("--related goes without --state: a state already holds the related datasets of its start")
    found, path = find(results, run), None if csv == "-" else Path(csv)
    if save:
        _check_writable(save)
    with sigterm_like_ctrl_c(), _opened(path) as lines:
        backbone = found.load(set_up_torch(device, threads), data_dir)
        if float64:
            backbone = backbone.double()
        _run(backbone, lines, path, state, save, related or [], _json_line if json else _csv_line, say, not json)


def _run(
    backbone: Backbone,
    lines: io.TextIOBase,
    path: Path | None,
    state: Path | None,
    save: Path | None,
    related: list[Path],
    write: Callable[[Answer], str],
    say: Callable[[str], None],
    header: bool,
) -> None:
    import torch

    from iclbench.streaming.answers import heading
    from iclbench.streaming.lines import LineFormat
    from iclbench.streaming.related import read_related
    from iclbench.streaming.stream import Stream

    columns = LineFormat.of(backbone.shape, torch.finfo(next(backbone.parameters()).dtype).max)
    sets = read_related(backbone, related, columns) if related else None
    start = _start(backbone, state) if state else None
    where = str(path or "stdin")
    streamed = Stream(backbone, start, sets, at_once=path is None or not path.is_file(), where=where)
    if header:
        typer.echo(",".join([*columns.inputs, *heading(backbone.shape)]))
    started = time.monotonic()
    try:
        for answer in streamed.run(columns.read(limits.lines(lines, where), where)):
            typer.echo(write(answer))
            sys.stdout.flush()
    finally:
        seconds = max(time.monotonic() - started, 1e-9)
        if save:
            with held_back(signal.SIGINT, signal.SIGTERM):  # who asks twice still gets the state
                _save(backbone, streamed.state, save)
        say(
            f"{streamed.points} points and {streamed.queries} queries in {seconds:.1f} s "
            f"({streamed.points / seconds:.0f} points/s), state of {streamed.state.nbytes} bytes"
            + (f" saved to {save}" if save else "")
        )


def _start(backbone: Backbone, state: Path) -> State:
    try:
        return backbone.load_state(state)
    except DataError as error:
        raise DataError(f"--state: {error}; give a file that --save of this run has written") from error


@contextmanager
def _opened(path: Path | None) -> Iterator[io.TextIOBase]:
    """The lines of a file or of standard input; bytes that are no text show up as wrong numbers."""
    if path is None:
        if sys.stdin is None:
            raise UsageError("standard input is closed; give a file with --csv FILE")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        yield cast(io.TextIOBase, sys.stdin)
        return
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; give --csv a file, or - for stdin") from error
    with file:
        yield file


def _csv_line(answer: Answer) -> str:
    answered = (f"{value:.9g}" for values in answer.columns.values() for value in values)
    return ",".join([*map(repr, answer.x), *answered])


def _json_line(answer: Answer) -> str:
    import json

    return json.dumps({"line": answer.number, "x": answer.x, **answer.columns})


def _check_writable(path: Path) -> None:
    """Find out before the work, not after it."""
    import os

    if path.exists() and not path.is_file():
        raise UsageError(f"--save {path} is a {'folder' if path.is_dir() else 'device or a pipe'}; name a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError(f"--save {path}: no permission to write in {folder}; name another file")


def _save(backbone: Backbone, state, path: Path) -> None:  # type: ignore[no-untyped-def]
    try:
        backbone.save_state(state, path)
    except OSError as error:
        raise UsageError(f"cannot write the state to {path}: {error.strerror or error}") from error
