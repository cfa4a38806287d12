"""Predictions of the next element of a stream of tokens or vectors that is given as an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from iclbench.api.predict import Trained, backbone_of, plain_array, plain_numbers
from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.guard import guarded
from iclbench.core.predictor import eval_mode
from iclbench.store.runs import Run
from iclbench.streaming.answers import answer_column_names, answer_columns


@guarded
def next_element(model: Backbone | Trained | Run, elements: Any) -> pd.DataFrame:
    """Predict the next element after each prefix of one stream of tokens or vectors.

    The predictions are the same as with `iclbench stream`. If the task has a label for each prefix, as in state
    tracking, the label is predicted instead of the next element.

    Args:
        model: a backbone for streams, a `Trained` model or a finished run.
        elements: tokens `(N,)`, which are whole numbers from 0, or vectors `(N, Dy)`, where `(N,)` is allowed if Dy is
            1.

    Returns:
        A frame with N + 1 rows, one for each number of observed elements from 0 to N. The column `n` contains this
        number. The other columns are the same as in `iclbench stream`: `token` and `p0`, `p1`, ... for tokens; `mean1`,
        ... for vectors, with `std1`, ..., `low1`, ... and `high1`, ... (the central 90 % interval) if the model
        predicts distributions.

    Raises:
        UsageError: the model does not read such a stream, or the elements are not valid.

    >>> from iclbench.api.architectures import GRU
    >>> from iclbench.api.tasks import task
    >>> frame = next_element(GRU(task("markov", "smoke"), layers=1, width=16), [0, 2, 1])
    >>> frame.shape, frame.columns.tolist()
    ((4, 5), ['n', 'token', 'p0', 'p1', 'p2'])
    """
    backbone = backbone_of(model)
    shape = backbone.shape
    if shape.inputs not in ("tokens", "vectors"):
        function = "icl.next_event" if shape.inputs == "events" else "icl.predict"
        raise UsageError(f"next_element: the model reads {shape.inputs}; use {function}", code="not-applicable")
    weight = next(backbone.parameters())
    values = _tokens(elements, shape.classes) if shape.classes is not None else _vectors(elements, shape.y_dim)
    y = values.to(weight.device) if shape.classes is not None else values.to(weight)
    if reason := backbone.too_long(len(y)):
        raise UsageError(f"elements: the model does not support {len(y)} elements: {reason}", code="not-applicable")
    # Append the next element, which the model predicts. Its value is arbitrary, because the model never reads it.
    y = torch.cat([y, y.new_zeros(1, *y.shape[1:])]).unsqueeze(0)
    points = Points.full(weight.new_empty(1, y.shape[1], 0), y)
    with eval_mode(backbone), torch.no_grad():
        prediction = backbone.predict_next(points)
    check_answer(backbone, "predict_next", prediction, (1, y.shape[1]), points.y)
    try:
        columns = [fields for _, fields in answer_columns(prediction, shape)]
    except DataError as error:
        raise UsageError(f"elements: {error}", code=error.code) from None
    rows = [[value for numbers in fields.values() for value in numbers] for fields in columns]
    frame = pd.DataFrame(rows, columns=answer_column_names(shape))
    if shape.classes is not None:
        frame["token"] = frame["token"].astype(int)
    frame.insert(0, "n", np.arange(len(frame)))
    return frame


def _tokens(values: Any, vocabulary: int) -> Tensor:
    tokens = plain_array("elements", values, "whole numbers")
    is_valid = tokens.ndim == 1 and (not tokens.size or tokens.dtype.kind in "iu")
    if not is_valid or ((tokens < 0) | (tokens >= vocabulary)).any():
        raise UsageError(
            f"elements: expected tokens from 0 to {vocabulary - 1}, (N,), got {tokens.dtype} of shape {tokens.shape}"
            + (f" with the values {tokens.min()} to {tokens.max()}" if is_valid else ""),
            code="bad-value",
        )
    return torch.from_numpy(tokens.astype(np.int64))


def _vectors(values: Any, dim: int) -> Tensor:
    vectors = plain_numbers("elements", values, "fiu")
    vectors = vectors.reshape(-1, dim) if not vectors.size or (dim == 1 and vectors.ndim == 1) else vectors
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UsageError(
            f"elements: expected vectors, (N, {dim}), got an array of shape {vectors.shape}", code="bad-value"
        )
    if not np.isfinite(vectors).all():
        raise UsageError(
            "elements: expected finite numbers only; remove or replace NaN and infinite values", code="bad-value"
        )
    return torch.from_numpy(vectors.astype(np.float64))
