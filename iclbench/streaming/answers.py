"""The columns of a stream's answers."""

from __future__ import annotations

import torch

from iclbench.core.task import TaskShape


def heading(shape: TaskShape) -> list[str]:
    """Names of all columns of a task's answers: mean1, mean2, ...; classes and marks count from 0. Of events the first
    is the time at which the next one is expected (`Clock.answer`)."""
    blank = shape.prediction.from_raw(torch.zeros(1, 1, shape.raw_dim), shape.outputs, shape.head_settings)
    names = [] if shape.marks is None else ["time"]
    for group, values in blank.columns().items():
        one = group == "label" or (shape.marks is not None and group != "p")
        first = 0 if group == "p" else 1
        names += [group if one else f"{group}{first + i}" for i in range(values.shape[-1])]
    return names
