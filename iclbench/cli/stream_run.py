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
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.predictor import State
from iclbench.core.signals import held_back
from iclbench.streaming.answers import heading
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.related import read_related
from iclbench.streaming.stream import Answer, Stream
from iclbench.streaming.window import WindowState


def answer_all(
    backbone: Backbone,
    lines: io.TextIOBase,
    path: Path | None,
    state: Path | None,
    save: Path | None,
    related: list[Path],
    window: int | None,
    write: Callable[[Answer], str],
    header: bool,
) -> None:
    columns = LineFormat.of(backbone.shape, torch.finfo(next(backbone.parameters()).dtype).max)
    sets = read_related(backbone, related, columns) if related else None
    where = str(path or "stdin")
    streamed = _streamed(backbone, state, sets, window, at_once=path is None or not path.is_file(), where=where)
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
            f"({streamed.points / seconds:.0f} points/s), {_size(streamed.state)}"
            + (f" saved to {save}" if save else "")
        )


def _streamed(
    backbone: Backbone, state: Path | None, related: Points | None, window: int | None, at_once: bool, where: str
) -> Stream:
    """The stream at its start."""
    try:
        start = backbone.load_state(state) if state else None
    except DataError as error:
        raise DataError(f"--state: {error}; give a file that --save of this run has written") from error
    try:
        return Stream(backbone, start, related, at_once, where, window)
    except DataError as error:
        raise DataError(f"--state {state}: {error}") from error


def _size(state: State) -> str:
    if isinstance(state, WindowState):
        points = state.points.count
        return f"window of {points} point{'s' * (points != 1)}, its state of {state.state.nbytes} bytes"
    return f"state of {state.nbytes} bytes"


def csv_line(answer: Answer) -> str:
    answered = (f"{value:.9g}" for values in answer.columns.values() for value in values)
    return ",".join([*map(repr, answer.x), *answered])


def json_line(answer: Answer) -> str:
    return json.dumps({"line": answer.number, "x": answer.x, **answer.columns})


def _save(backbone: Backbone, state: State, path: Path) -> None:
    try:
        backbone.save_state(state, path)
    except OSError as error:
        raise UsageError(f"cannot write the state to {path}: {error.strerror or error}") from error
