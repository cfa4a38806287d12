"""Kernel regression with a learned kernel: a target attends to the context by features of the inputs, and averages the
outputs. The order of the context does not matter (a set model)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.base import Backbone, BackboneSettings, TaskShape
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.settings import PositiveInt
from iclbench.layers.perceptron import perceptron


class LearnedKernelSettings(BackboneSettings):
    width: PositiveInt = 64
    """Width of all layers."""
    features: PositiveInt = 4
    """Number of kernels."""


class LearnedKernel(Backbone):
    """Kernel regression with several learned kernels.

    The class defines `predict_targets`. The base class derives `predict_next`, `condition`, `query` and `update` from
    it.
    """

    Settings = LearnedKernelSettings
    order = "set"

    def __init__(self, settings: LearnedKernelSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width, self.kernels = settings.width, settings.features
        self.inputs = perceptron(shape.x_dim, width, width, self.kernels * width)
        self.outputs: nn.Module = (
            perceptron(shape.y_dim, width, width) if shape.classes is None else nn.Embedding(shape.classes, width)
        )
        # The value of an additional point in every context, to which a target attends if no other point is near.
        self.nothing = nn.Parameter(torch.zeros(width))
        self.read_out = perceptron(self.kernels * width + shape.x_dim, width, width, shape.raw_dim)

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> Prediction:
        batch, targets = x_target.shape[:2]
        keys, queries = self._features(context.x), self._features(x_target)
        logits = -0.5 * torch.cdist(queries, keys).square() / keys.shape[-1] ** 0.5
        logits = logits.masked_fill(~context.mask[:, None, None], -torch.inf)
        logits = torch.cat([logits, logits.new_full((batch, self.kernels, targets, 1), -4.0)], -1)
        values = torch.cat([self.outputs(context.y), self.nothing.expand(batch, 1, -1)], 1)
        kernel_means = logits.softmax(-1) @ values.unsqueeze(1)
        return self.read(self.read_out(torch.cat([kernel_means.transpose(1, 2).flatten(2), x_target], -1)))

    def _features(self, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B H N D"]:
        return self.inputs(x).unflatten(-1, (self.kernels, -1)).transpose(1, 2)
