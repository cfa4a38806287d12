"""The next event of a sequence, from arrays of times and marks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from iclbench.api.predict import Trained, backbone_of, plain_array, plain_numbers
from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.guard import guarded
from iclbench.core.predictor import as_used
from iclbench.store.runs import Run
from iclbench.streaming.answers import answers
from iclbench.streaming.clock import Clock, started_at
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.lines import Line


@guarded
def next_event(
    model: Backbone | Trained | Run, times: Any, marks: Any = None, *, start: float | str | None = None
) -> pd.DataFrame:
    """When the next event comes, and with what mark, after every number of events of one sequence.

    The answers are those of `iclbench stream`.

    Args:
        model: a backbone for event sequences, a `Trained` model or a finished run.
        times: `(N,)`, increasing. In the unit of the file that a run is trained on, whatever `time_scale` says; for a
            backbone by itself in that of its episodes.
        marks: `(N,)`, whole numbers from 0; None: all 0.
        start: when the observation started, or "first": with the first of the times, which is not an event then; None:
            as the run's task says (`task.start`), for a backbone by itself at 0.

    Returns:
        N + 1 rows, one after each of the first 0 to N events. Columns `n` (events seen), `time` (expected), `gap`
        (expected, since the last event), `median`, `low`, `high` (of the gap; ends of the central 90 % interval),
        `mark` (the likeliest) and `p0`, `p1`, ... (of every mark).

    Raises:
        UsageError: the model reads no events, times and marks are none, or they are on a scale on which the model
            cannot compute: no answer is infinite.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.tasks import task
    >>> model = GPT2(task("point-process", "smoke"), layers=1, width=16)
    >>> found = next_event(model, [0.5, 1.25, 4.0], [0, 2, 1])
    >>> found.shape, found.columns[:6].tolist()
    ((4, 10), ['n', 'time', 'gap', 'median', 'low', 'high'])
    """
    backbone = backbone_of(model)
    kinds = backbone.shape.marks
    if kinds is None:
        raise UsageError("next_event: the model was not trained on events; icl.predict asks it at inputs of your own")
    when = _times(times)
    lines = [
        Line(number, [], list(event))
        for number, event in enumerate(zip(when.tolist(), _marks(marks, len(when)).tolist(), strict=True))
    ]
    clock = _clock(model, start)
    weight = next(backbone.parameters())
    numbers = torch.finfo(weight.dtype)
    columns = EventFormat.of_events(backbone.shape, numbers.tiny, numbers.max, clock)
    columns = replace(columns, options=("start=", "model.double()"))
    try:
        events = list(columns.events(lines, "times: event", "event"))
    except DataError as error:
        raise UsageError(str(error)) from None
    if clock.last is None:
        raise UsageError("times: the observation starts with the first event; give that first")
    if reason := backbone.too_long(len(events)):
        raise UsageError(f"times: {len(events)} events: {reason}")
    # The point behind the last event is asked, and read by nobody.
    asked = weight.new_tensor([*(line.y or [] for line in events), [1.0, 0.0, 1.0]])
    points = Points.full(asked.new_empty(1, len(asked), 0), asked.unsqueeze(0))
    with as_used(backbone), torch.no_grad():
        prediction = backbone.predict_next(points)
    check_answer(backbone, "predict_next", prediction, (1, len(asked)), points.y)
    try:
        found = list(answers(prediction, clock, [clock.last, *(line.time or 0.0 for line in events)]))
    except DataError as error:
        raise UsageError(f"times: {error}") from None
    single = ("gap", "median", "low", "high", "mark")
    frame = pd.DataFrame({"n": np.arange(len(found)), "time": [time for time, _ in found]})
    frame = frame.assign(**{name: [own[name][0] for _, own in found] for name in single})
    frame["mark"] = frame["mark"].astype(int)
    return frame.assign(**{f"p{k}": [own["p"][k] for _, own in found] for k in range(kinds)})


def _clock(model: Backbone | Trained | Run, start: float | str | None) -> Clock:
    """The clock of the sequences that a model was trained on."""
    if isinstance(model, Run):
        model = Trained(model)
    if isinstance(model, Trained):
        return Clock.of_family(model.family, start)
    return Clock(0.0 if start is None else started_at(start))


def _times(values: Any) -> np.ndarray:
    found = plain_numbers("times", values, "fiu")
    if found.ndim != 1 or not np.isfinite(found).all():
        raise UsageError(f"times: expected finite numbers of one sequence, (N,), got an array of shape {found.shape}")
    return found


def _marks(values: Any, events: int) -> np.ndarray:
    found = np.zeros(events, dtype=int) if values is None else plain_array("marks", values, "whole numbers")
    if found.shape != (events,) or (events and found.dtype.kind not in "iu"):
        raise UsageError(f"marks: expected {events} whole numbers, one per event, got {found.dtype} of {found.shape}")
    return found.reshape(events).astype(float)
