"""Predictions as columns of numbers: what a stream answers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import TaskShape
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Prediction


def answer_columns(prediction: Prediction) -> dict[str, Float[Tensor, "B Q columns"]]:
    """Groups of columns: the mean; where there is a spread, standard deviation and the central 90 % interval; of
    classes the likeliest one and all probabilities."""
    if isinstance(prediction, Categorical):
        probabilities = prediction.logits.softmax(-1)
        return {"label": probabilities.argmax(-1, keepdim=True).to(probabilities.dtype), "p": probabilities}
    mean: Tensor = prediction.mean  # type: ignore[attr-defined]
    if isinstance(prediction, Mixture):
        low, high = quantile(prediction, 0.05), quantile(prediction, 0.95)
        return {"mean": mean, "std": prediction.std, "low": low, "high": high}
    if isinstance(prediction, Gaussian):
        low, high = prediction.interval_90()
        return {"mean": mean, "std": prediction.std, "low": low, "high": high}
    return {"mean": mean}


def heading(shape: TaskShape) -> list[str]:
    """Names of all columns of a task's answers: mean1, mean2, ...; classes count from 0."""
    blank = shape.prediction.from_raw(torch.zeros(1, 1, shape.raw_dim), shape.outputs, shape.head_settings)
    names = []
    for group, values in answer_columns(blank).items():
        first = 0 if group == "p" else 1
        names += [group if group == "label" else f"{group}{first + i}" for i in range(values.shape[-1])]
    return names


def quantile(mixture: Mixture, level: float) -> Float[Tensor, "B Q Dy"]:
    """Where the distribution of each output reaches `level`, by bisection to the last bit but a few."""
    low = (mixture.means - 10 * mixture.stds).amin(-2)
    high = (mixture.means + 10 * mixture.stds).amax(-2)
    for _ in range(60):
        middle = (low + high) / 2
        below = mixture.cumulative(middle) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
