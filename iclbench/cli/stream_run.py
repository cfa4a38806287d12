"""Read points and queries of a stream, answer the queries, and save the state."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import typer

from iclbench.backbones.base import Backbone
from iclbench.cli.terminal import say
from iclbench.core import limits
from iclbench.core.errors import DataError, UsageError
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import plural
from iclbench.core.predictor import State
from iclbench.core.records import read_about
from iclbench.core.signals import defer_signals
from iclbench.store.runs import Run
from iclbench.streaming.answers import INDEX_COLUMNS, answer_column_names
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
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
    clock: Clock | None,
    write: Callable[[Answer], str],
    header: bool,
) -> None:
    """Answer the queries of a stream as they arrive, and save the state at the end, even after an error or Ctrl-C.

    Args:
        backbone: the model.
        lines: the lines of the stream.
        path: the file of the lines; None for standard input.
        state: the file of the initial state.
        save: the file to save the state to.
        related: files of related datasets.
        window: maximum number of points in the context.
        clock: the clock of a stream of events.
        write: function that formats an answer as one line.
        header: whether to print the names of the columns first.
    """
    source = str(path or "stdin")
    start, clock, points_before = _initial_state(backbone, state, clock)
    line_format = _line_format(backbone, clock)
    related_sets = read_related(backbone, related, line_format) if related else None
    is_interactive = path is None or not path.is_file()
    try:
        stream = Stream(backbone, start, related_sets, is_interactive, source, window, clock, points_before)
    except DataError as error:
        raise DataError(f"--state {state}: {error}", code=error.code) from error
    if header:
        typer.echo(",".join([*line_format.inputs, *answer_column_names(backbone.shape)]))
    start_time = time.monotonic()
    try:
        for answer in stream.run(line_format.read(_read_lines(lines, source), source)):
            typer.echo(write(answer))
            sys.stdout.flush()
    finally:
        noun = backbone.shape.noun
        seconds = max(time.monotonic() - start_time, 1e-9)
        if save:
            with defer_signals(signal.SIGINT, signal.SIGTERM):  # a second signal does not interrupt the save
                _save(backbone, stream, save)
        say(
            f"{stream.points} {noun}{'s' * (stream.points != 1)} and "
            f"{stream.queries} {'query' if stream.queries == 1 else 'queries'} in {seconds:.1f} s "
            f"({stream.points / seconds:.0f} {noun}s/s), {_state_size(stream.state, noun)}"
            + (f" saved to {save}" if save else "")
        )


def _read_lines(lines: io.TextIOBase, source: str) -> Iterator[str]:
    """Yield the lines (`limits.lines`). Raise `DataError` if the file cannot be read."""
    try:
        yield from limits.lines(lines, source)
    except OSError as error:
        raise cannot_read(Path(source), error, "pass --csv a file, or - for stdin") from error


def event_clock(run: Run, backbone: Backbone, start: str | None) -> Clock | None:
    """Return the clock of a stream of events, given the run's task and `--start`; None for a stream of points."""
    if backbone.shape.marks is None:
        if start is not None:
            raise UsageError("--start needs a run on event sequences; points have no time", code="not-applicable")
        return None
    try:
        return Clock.of_family(run.config.task.build(), start)
    except UsageError:
        raise UsageError(f"--start {start}: write a time, or first", code="bad-value") from None


def _initial_state(
    backbone: Backbone, state: Path | None, clock: Clock | None
) -> tuple[State | None, Clock | None, int]:
    """Return the initial state, its clock and its number of points. The number is 0 if the state was not saved by a
    stream."""
    if state is None:
        return None, clock, 0
    try:
        start, about = backbone.load_state(state), read_about(state)
        return start, None if clock is None else Clock.of_state(about), int(about.get("points", 0))
    except DataError as error:
        raise DataError(f"--state: {error}; pass a file that --save wrote for this run", code=error.code) from error


def _line_format(backbone: Backbone, clock: Clock | None) -> LineFormat:
    float_info = torch.finfo(next(backbone.parameters()).dtype)
    if clock is None:
        return LineFormat.of(backbone.shape, float_info.max)
    return EventFormat.of_events(backbone.shape, float_info.tiny, float_info.max, clock)


def _state_size(state: State, noun: str) -> str:
    if isinstance(state, WindowState):
        return f"window of {plural(state.points.count, noun)} with a state of {state.state.nbytes} bytes"
    return f"state of {state.nbytes} bytes"


def csv_line(answer: Answer) -> str:
    """Return an answer as a line of a CSV file."""
    values = (f"{value:.9g}" for numbers in answer.columns.values() for value in numbers)
    time = [] if answer.time is None else [f"{answer.time:.15g}"]
    return ",".join([*map(repr, answer.x), *time, *values])


def json_line(answer: Answer) -> str:
    """Return an answer as a JSON object. A predicted label, token or mark is an integer, and all other values are lists
    of numbers."""
    columns: dict[str, object] = {"line": answer.number}
    if answer.x:
        columns["x"] = answer.x
    if answer.time is not None:
        columns["time"] = answer.time
    for name, values in answer.columns.items():
        columns[name] = int(values[0]) if name in INDEX_COLUMNS else values
    return json.dumps(columns)


def _save(backbone: Backbone, stream: Stream, path: Path) -> None:
    try:
        backbone.save_state(stream.state, path, stream.metadata())
    except OSError as error:
        raise UsageError(
            f"cannot write the state to {path}: {error.strerror or error}", code="unreadable-file"
        ) from error
