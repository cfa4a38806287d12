"""Reads points and queries of a stream, answers them, and keeps the state."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import typer

from iclbench.backbones.base import Backbone
from iclbench.cli.terminal import say
from iclbench.core import limits
from iclbench.core.errors import DataError, UsageError
from iclbench.core.predictor import State
from iclbench.core.signals import held_back
from iclbench.streaming.answers import heading
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.related import read_related
from iclbench.streaming.stream import Answer, Stream


def answer_all(
    backbone: Backbone,
    lines: io.TextIOBase,
    path: Path | None,
    state: Path | None,
    save: Path | None,
    related: list[Path],
    write: Callable[[Answer], str],
    header: bool,
) -> None:
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


def csv_line(answer: Answer) -> str:
    answered = (f"{value:.9g}" for values in answer.columns.values() for value in values)
    return ",".join([*map(repr, answer.x), *answered])


def json_line(answer: Answer) -> str:
    return json.dumps({"line": answer.number, "x": answer.x, **answer.columns})


def _save(backbone: Backbone, state, path: Path) -> None:  # type: ignore[no-untyped-def]
    try:
        backbone.save_state(state, path)
    except OSError as error:
        raise UsageError(f"cannot write the state to {path}: {error.strerror or error}") from error
