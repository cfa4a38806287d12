"""Predictions of the next event of a sequence that is given as arrays of times and marks."""

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
from iclbench.core.predictor import eval_mode
from iclbench.store.runs import Run
from iclbench.streaming.answers import answer_columns
from iclbench.streaming.clock import Clock, parse_start
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.lines import Line


@guarded
def next_event(
    model: Backbone | Trained | Run, times: Any, marks: Any = None, *, start: float | str | None = None
) -> pd.DataFrame:
    """Predict the time and the mark of the next event after each prefix of one sequence.

    The predictions are the same as with `iclbench stream`.

    Args:
        model: a backbone for event sequences, a `Trained` model or a finished run.
        times: `(N,)`, increasing. For a run, they are in the unit of its training file, regardless of its `time_scale`.
            For a backbone, they are in the unit of its episodes.
        marks: `(N,)`, whole numbers from 0 (default: all 0).
        start: start of the observation (default: `task.start` of the run, or 0 for a backbone). With "first", it is the
            first time, which then does not count as an event.

    Returns:
        A frame with a row for each number of observed events, from 0 to N (or N - 1 if the observation starts with the
        first time). Columns: `n` (number of observed events), `time` (expected time of the next event), `gap` (expected
        time from the last to the next event), `median`, `low`, `high` (median and central 90 % interval of the gap),
        `mark` (the most likely mark) and `p0`, `p1`, ... (probabilities of all marks).

    Raises:
        UsageError: the model does not read events, times or marks are not valid, or the predictions are infinite on the
            scale of the times.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.tasks import task
    >>> model = GPT2(task("point-process", "smoke"), layers=1, width=16)
    >>> frame = next_event(model, [0.5, 1.25, 4.0], [0, 2, 1])
    >>> frame.shape, frame.columns[:6].tolist()
    ((4, 10), ['n', 'time', 'gap', 'median', 'low', 'high'])
    """
    backbone = backbone_of(model)
    mark_count = backbone.shape.marks
    if mark_count is None:
        function = "icl.predict" if backbone.shape.x_dim else "icl.next_element"
        raise UsageError(f"next_event: the model does not read events; use {function}", code="not-applicable")
    event_times = _times(times)
    lines = [
        Line(number, [], list(event))
        for number, event in enumerate(zip(event_times.tolist(), _marks(marks, len(event_times)).tolist(), strict=True))
    ]
    clock = _clock(model, start)
    weight = next(backbone.parameters())
    float_info = torch.finfo(weight.dtype)
    event_format = EventFormat.of_events(backbone.shape, float_info.tiny, float_info.max, clock)
    event_format = replace(event_format, options=("start=", "model.double()"))
    try:
        events = list(event_format.events(lines, "times: event", "event"))
    except DataError as error:
        raise UsageError(str(error), code=error.code) from None
    if clock.last_time is None:
        raise UsageError(
            "times: expected at least one time, since the observation starts with the first event", code="bad-value"
        )
    if reason := backbone.too_long(len(events)):
        raise UsageError(f"times: the model does not support {len(events)} events: {reason}", code="not-applicable")
    # Append a point for the next event, which the model predicts. Its values are arbitrary, because the model never
    # reads them.
    y = weight.new_tensor([*(line.y or [] for line in events), [1.0, 0.0, 1.0]])
    points = Points.full(y.new_empty(1, len(y), 0), y.unsqueeze(0))
    with eval_mode(backbone), torch.no_grad():
        prediction = backbone.predict_next(points)
    check_answer(backbone, "predict_next", prediction, (1, len(y)), points.y)
    try:
        predictions = list(
            answer_columns(prediction, backbone.shape, clock, [clock.last_time, *(line.time or 0.0 for line in events)])
        )
    except DataError as error:
        raise UsageError(f"times: {error}", code=error.code) from None
    scalar_fields = ("gap", "median", "low", "high", "mark")
    frame = pd.DataFrame({"n": np.arange(len(predictions)), "time": [time for time, _ in predictions]})
    frame = frame.assign(**{name: [fields[name][0] for _, fields in predictions] for name in scalar_fields})
    frame["mark"] = frame["mark"].astype(int)
    return frame.assign(**{f"p{k}": [fields["p"][k] for _, fields in predictions] for k in range(mark_count)})


def _clock(model: Backbone | Trained | Run, start: float | str | None) -> Clock:
    """Return the clock of the model's training sequences."""
    if isinstance(model, Run):
        model = Trained(model)
    if isinstance(model, Trained):
        return Clock.of_family(model.family, start)
    return Clock(0.0 if start is None else parse_start(start))


def _times(values: Any) -> np.ndarray:
    times = plain_numbers("times", values, "fiu")
    if times.ndim != 1 or not np.isfinite(times).all():
        raise UsageError(
            f"times: expected a one-dimensional array of finite numbers, got an array of shape {times.shape}",
            code="bad-value",
        )
    return times


def _marks(values: Any, events: int) -> np.ndarray:
    marks = np.zeros(events, dtype=int) if values is None else plain_array("marks", values, "whole numbers")
    if marks.shape != (events,) or (events and marks.dtype.kind not in "iu"):
        raise UsageError(
            f"marks: expected {events} whole numbers, one per event, got {marks.dtype} of shape {marks.shape}",
            code="bad-value",
        )
    return marks.reshape(events).astype(float)
