"""The columns of a stream's answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from iclbench.core.errors import DataError
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape
from iclbench.streaming.clock import Clock
from iclbench.streaming.lines import label_column

Columns = dict[str, list[float]]
# Columns that contain an integer.
INDEX_COLUMNS = frozenset({"label", "token", "mark"})


def answer_column_names(shape: TaskShape) -> list[str]:
    """Return the column names of a task's answers, such as mean1, mean2, ...; classes and marks are numbered from 0.
    For events, the first column is the expected time of the next event (`Clock.answer`)."""
    blank_prediction = shape.prediction.from_raw(torch.zeros(1, 1, shape.raw_dim), shape.outputs, shape.head_settings)
    names = [] if shape.marks is None else ["time"]
    for group, values in columns_of(blank_prediction, shape).items():
        is_single = group in INDEX_COLUMNS or (shape.marks is not None and group != "p")
        start = 0 if group == "p" else 1
        names += [group if is_single else f"{group}{start + i}" for i in range(values.shape[-1])]
    return names


def columns_of(prediction: Prediction, shape: TaskShape) -> dict[str, Tensor]:
    """Return `Prediction.columns` under the names that a stream prints."""
    return {label_column(shape) if name == "label" else name: t for name, t in prediction.columns().items()}


def answer_columns(
    prediction: Prediction, shape: TaskShape, clock: Clock | None = None, after: Sequence[float] | None = None
) -> Iterator[tuple[float | None, Columns]]:
    """Yield each answer of a prediction for one episode: the expected time of the next event (None for points), and the
    columns, in the user's unit of time.

    Args:
        prediction: a prediction of shape `(1, N)`.
        shape: the task.
        clock: the clock of an event stream; None for points.
        after: time of the last event before each answer (default: the last event of the clock).

    Raises:
        DataError: an answer is not finite; the answers before it are yielded first.
    """
    parts = [t[0].isfinite().flatten(1).all(1) for t in prediction.tensors().values()]
    is_finite = torch.stack(parts).all(0).tolist()
    input_name = "time" if clock is not None else "x" if shape.x_dim else "y"
    columns = {group: values[0].tolist() for group, values in columns_of(prediction, shape).items()}
    for i, is_usable in enumerate(is_finite):
        time, answer = None, {group: rows[i] for group, rows in columns.items()}
        if clock is not None:
            time, answer = clock.answer(answer, None if after is None else after[i])
        if not is_usable or not all(map(math.isfinite, [time or 0.0, *itertools.chain(*answer.values())])):
            raise DataError(
                f"the model's answer is not finite; check that {input_name} is scaled as in training",
                code="not-finite",
            )
        yield time, answer
