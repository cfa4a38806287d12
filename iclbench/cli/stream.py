"""`iclbench stream RUN`: a trained model that learns points line by line and answers queries as they come."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from iclbench.cli.options import set_up_torch
from iclbench.config.archives import find
from iclbench.core.errors import DataError, UsageError
from iclbench.core.files import check_state_file
from iclbench.core.signals import sigterm_like_ctrl_c

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.config.runs import Run
    from iclbench.streaming.clock import Clock


def stream(
    run: str,
    csv: str,
    state: Path | None,
    save: Path | None,
    related: list[Path] | None,
    window: int | None,
    start: str | None,
    float64: bool,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    json: bool,
) -> None:
    """Learn points or events and answer queries line by line: a query sees all before it. In constant memory where the
    backbone allows (cmanp, cnp, cmhp, recurrent ones)."""
    if state and related:
        raise UsageError("--related goes without --state: a state already holds the related datasets of its start")
    if state and start is not None:
        raise UsageError("--start goes without --state: a state already holds when its observation started")
    found, path = find(results, run), None if csv == "-" else Path(csv)
    if save:
        _check_writable(save)
    with sigterm_like_ctrl_c(), _opened(path) as lines:
        backbone = found.load(set_up_torch(device, threads), data_dir)
        from iclbench.cli.stream_run import answer_all, csv_line, json_line

        if float64:
            backbone = backbone.double()
        clock = _clock(found, backbone, start)
        write = json_line if json else csv_line
        answer_all(backbone, lines, path, state, save, related or [], window, clock, write, header=not json)


def _clock(run: Run, backbone: Backbone, start: str | None) -> Clock | None:
    """The clock of a stream of events, as the run's task and `--start` set it; None: it is one of points."""
    from iclbench.streaming.clock import Clock

    if backbone.shape.marks is None:
        if start is not None:
            raise UsageError("--start is for runs on event sequences; points have no time")
        return None
    try:
        return Clock.of_family(run.config.task.build(), start)
    except UsageError:
        raise UsageError(f"--start {start}: write a time, or first") from None


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


def _check_writable(path: Path) -> None:
    """Find out before the work, not after it: only a saved state is replaced."""
    if path.exists() and not path.is_file():
        raise UsageError(f"--save {path} is a {'folder' if path.is_dir() else 'device or a pipe'}; name a file")
    check_state_file(path)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError(f"--save {path}: no permission to write in {folder}; name another file")
