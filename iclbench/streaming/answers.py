"""The columns of a stream's answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from iclbench.core.errors import DataError
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape
from iclbench.streaming.clock import Clock

Columns = dict[str, list[float]]


def heading(shape: TaskShape) -> list[str]:
    """Names of all columns of a task's answers: mean1, mean2, ...; classes and marks count from 0. Of events the first
    is the time at which the next one is expected (`Clock.answer`)."""
    blank = shape.prediction.from_raw(torch.zeros(1, 1, shape.raw_dim), shape.outputs, shape.head_settings)
    names = [] if shape.marks is None else ["time"]
    for group, values in blank.columns().items():
        single = group == "label" or (shape.marks is not None and group != "p")
        start = 0 if group == "p" else 1
        names += [group if single else f"{group}{start + i}" for i in range(values.shape[-1])]
    return names


def answers(
    prediction: Prediction, clock: Clock | None = None, after: Sequence[float] | None = None
) -> Iterator[tuple[float | None, Columns]]:
    """Every answer for the one episode of a prediction: of events the time at which the next one is expected, and the
    columns in the user's unit of time.

    Args:
        prediction: `(1, N)`.
        clock: of events.
        after: times of the last event before each answer; None: that of the clock.

    Raises:
        DataError: an answer is not finite; those before it are given first.
    """
    parts = [t[0].isfinite().flatten(1).all(1) for t in prediction.tensors().values()]
    finite = torch.stack(parts).all(0).tolist()
    input_name = "x" if clock is None else "time"
    columns = {group: values[0].tolist() for group, values in prediction.columns().items()}
    for i, usable in enumerate(finite):
        time, answer = None, {group: rows[i] for group, rows in columns.items()}
        if clock is not None:
            time, answer = clock.answer(answer, None if after is None else after[i])
        if not usable or not all(map(math.isfinite, [time or 0.0, *itertools.chain(*answer.values())])):
            raise DataError(f"the model has no finite answer; is {input_name} on the scale of its task?")
        yield time, answer
