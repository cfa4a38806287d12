"""Checks of the return values of predictors and families. Without them, a wrong shape or type could go unnoticed and
change scores.

The checks read only shapes and types, which takes almost no time. They apply to all classes, including built-in ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from iclbench.core.episodes import Episodes
from iclbench.core.errors import PluginError, is_ours, shorten
from iclbench.core.joint import Samples
from iclbench.core.predictions import Categorical, Prediction

# Number of axes of each field of a prediction. Fields of `Samples` have one more axis. The number of axes of other
# fields is not checked.
_AXES = {"mean": 3, "std": 3, "means": 4, "stds": 4, "logits": 3}


def check_answer(predictor: Any, method: str, answer: Any, query_shape: Sequence[int], y: Tensor | None = None) -> None:
    """Raise `PluginError` unless a method returned a `Prediction` with floating-point values of the right shape.

    Args:
        predictor: the predictor.
        method: the method that returned the answer.
        answer: the returned value.
        query_shape: shape of the queries, `(batch, positions, ...)`.
        y: outputs of the task, `(batch, points, ...)`, which determine the expected width (default: the predictor's
            task determines it).
    """
    cls = _class_of(predictor)
    if not isinstance(answer, Prediction):
        raise PluginError.of(
            cls, method, f"returned a {type(answer).__name__}, expected a Prediction such as Point(mean)"
        )
    batch, positions = query_shape[:2]
    is_samples, width = isinstance(answer, Samples), _width(predictor, y)
    for name, tensor in answer.tensors().items():
        shape, axes = tuple(tensor.shape), _AXES[name] + is_samples if name in _AXES else None
        last_axis = width if axes and (name != "logits" or isinstance(answer, Categorical)) else None
        fits = shape[:2] == (batch, positions) and axes in (None, len(shape))
        if not fits or (last_axis is not None and shape[-1] != last_axis):
            middle_axes = ["functions"] * is_samples + ["components"] * (name in ("means", "stds"))
            expected = ", ".join(map(str, (batch, positions, *middle_axes, "..." if last_axis is None else last_axis)))
            raise PluginError.of(cls, method, f"returned {shape}, expected ({expected})")
        if name in _AXES and not tensor.is_floating_point():
            raise PluginError.of(cls, method, f"returned {_dtype(tensor)}, expected float32")


def _class_of(predictor: Any) -> type:
    """Return the class of a predictor. If iclbench has wrapped a backbone (in an image encoder or a window), return the
    backbone's class."""
    while is_ours(type(predictor)) and hasattr(predictor, "backbone"):
        predictor = predictor.backbone
    return type(predictor)


def _width(predictor: Any, y: Tensor | None) -> int | None:
    """Return the expected size of the last axis of means or logits; None if it is unknown."""
    if y is not None and y.is_floating_point():
        return int(y.shape[-1])
    task = getattr(predictor, "shape", None) or getattr(predictor, "facts", None)
    classes = getattr(task, "classes", None)
    return classes if classes is not None else getattr(task, "y_dim", None)


def check_loss(backbone: Any, answer: Any) -> None:
    """Raise `PluginError` unless a backbone's `loss` returned a scalar loss and a dict of the parts of the loss."""
    cls = _class_of(backbone)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise PluginError.of(
            cls, "loss", f"returned a {type(answer).__name__}, expected a loss and a dict of its parts"
        )
    loss = answer[0]
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
        kind = f"{_dtype(loss)} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        problem = f"returned a loss of type {kind}, expected a floating-point tensor of shape ()"
        raise PluginError.of(cls, "loss", problem)


def check_episodes(family: Any, method: str, episodes: Any) -> None:
    """Raise `PluginError` unless the points of the episodes have the dimensions and types that the family declares."""
    cls = type(family)
    if not isinstance(episodes, Episodes):
        raise PluginError.of(cls, method, f"returned a {type(episodes).__name__}, expected Episodes")
    for name, points in (("context", episodes.context), ("targets", episodes.targets)):
        if points is None:
            continue
        x, y, output_shape = points.x, points.y, () if family.classes is not None else (family.y_dim,)
        if x.dim() != 3 or x.shape[-1] != family.x_dim:
            raise PluginError.of(cls, method, f"returned {name}.x of {tuple(x.shape)}, expected (B, N, {family.x_dim})")
        expected = (*x.shape[:2], *output_shape)
        if tuple(y.shape) != expected:
            raise PluginError.of(cls, method, f"returned {name}.y of {tuple(y.shape)}, expected {expected}")
        if not x.is_floating_point():
            raise PluginError.of(cls, method, f"returned {name}.x as {_dtype(x)}, expected float32")
        if y.is_floating_point() != (family.classes is None):
            dtype = "float32" if family.classes is None else "int64"
            raise PluginError.of(cls, method, f"returned {name}.y as {_dtype(y)}, expected {dtype}")


def check_normaliser(family: Any) -> None:
    """Raise `PluginError` unless the family's normaliser is a positive number."""
    normaliser = family.normaliser
    if not (isinstance(normaliser, int | float) and math.isfinite(normaliser) and normaliser > 0):
        problem = f"is {shorten(repr(normaliser))}, expected a positive number: the variance of the noiseless outputs"
        raise PluginError.of(type(family), "normaliser", problem)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
