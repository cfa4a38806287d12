"""The next event of a sequence, from arrays of times and marks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from iclbench.api.predict import Trained, backbone_of, plain_array, plain_numbers
from iclbench.backbones.base import Backbone
from iclbench.config.runs import Run
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, TIME
from iclbench.core.guard import guarded
from iclbench.core.predictor import as_used
from iclbench.streaming.clock import LENGTHS


@guarded
def next_event(model: Backbone | Trained | Run, times: Any, marks: Any = None) -> pd.DataFrame:
    """When the next event comes, and with what mark, after every number of events of one sequence.

    Args:
        model: a backbone for event sequences, a `Trained` model or a finished run.
        times: `(N,)`, increasing, from 0 on: the observation starts at 0. In the unit of the file that a run is trained
            on, whatever `time_scale` says; for a backbone by itself in that of its episodes.
        marks: `(N,)`, whole numbers from 0; None: all 0.

    Returns:
        N + 1 rows, one after each of the first 0 to N events. Columns `n` (events seen), `time` (expected), `gap`
        (expected, since the last event), `median`, `low`, `high` (of the gap; ends of the central 90 % interval),
        `mark` (the likeliest) and `p0`, `p1`, ... (of every mark).

    Raises:
        UsageError: the model reads no events, times and marks are none, or they are on a scale on which the model
            cannot compute.

    >>> from iclbench.api.models import GPT2
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
    y = np.stack([np.diff(when, prepend=0.0), _marks(marks, len(when), kinds), when], 1)
    if reason := backbone.too_long(len(when)):
        raise UsageError(f"times: {len(when)} events: {reason}")
    unit, lengths = _unit(model), [GAP, TIME]
    y[:, lengths] /= unit
    weight = next(backbone.parameters())
    numbers = torch.finfo(weight.dtype)
    beyond = np.flatnonzero((y[:, GAP] < numbers.tiny) | (y[:, TIME] > numbers.max))
    if beyond.size:
        n = int(beyond[0])
        raise UsageError(
            f"times: event {n} at {when[n]:g}, a gap of {y[n, GAP]:.3g}, is beyond what the model computes with; give "
            "times in the unit that it was trained on"
        )
    # The point behind the last event is asked, and read by nobody.
    asked = torch.as_tensor(np.concatenate([y, [[1.0, 0.0, 1.0]]]), dtype=weight.dtype, device=weight.device)
    points = Points.full(asked.new_empty(1, len(asked), 0), asked.unsqueeze(0))
    with as_used(backbone), torch.no_grad():
        prediction = backbone.predict_next(points)
    if not all(bool(t.isfinite().all()) for t in prediction.tensors().values()):
        raise UsageError("times: the model has no finite answer; give them in the unit that it was trained on")
    columns = prediction.columns()
    found = {name: values[0].double().cpu().numpy() for name, values in columns.items()}
    single = {name: values[:, 0] * (unit if name in LENGTHS else 1) for name, values in found.items() if name != "p"}
    last = np.concatenate([[0.0], when])
    frame = pd.DataFrame({"n": np.arange(len(last)), "time": last + single["gap"], **single})
    frame["mark"] = frame["mark"].astype(int)
    return frame.assign(**{f"p{k}": found["p"][:, k] for k in range(kinds)})


def _unit(model: Backbone | Trained | Run) -> float:
    """What times are divided by before the model reads them."""
    if isinstance(model, Run):
        model = Trained(model)
    return model.family.time_unit if isinstance(model, Trained) else 1.0


def _times(values: Any) -> np.ndarray:
    found = plain_numbers("times", values, "fiu")
    if found.ndim != 1 or not np.isfinite(found).all():
        raise UsageError(f"times: expected finite numbers of one sequence, (N,), got an array of shape {found.shape}")
    wrong = np.flatnonzero(np.diff(found, prepend=0.0) <= 0)
    if wrong.size:
        before = found[wrong[0] - 1] if wrong[0] else 0.0
        raise UsageError(f"times: event {wrong[0]} at {found[wrong[0]]:g} is not after {before:g}; give them in order")
    return found


def _marks(values: Any, events: int, kinds: int) -> np.ndarray:
    found = np.zeros(events, dtype=int) if values is None else plain_array("marks", values, "whole numbers")
    if found.shape != (events,) or (events and found.dtype.kind not in "iu"):
        raise UsageError(f"marks: expected {events} whole numbers, one per event, got {found.dtype} of {found.shape}")
    if events and (found.min() < 0 or found.max() >= kinds):
        raise UsageError(f"marks: expected whole numbers from 0 to {kinds - 1}, got {found.min()} to {found.max()}")
    return found.reshape(events)
