"""The read-in layer, which maps inputs and outputs of points to the interleaved tokens of a sequence model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.core.task import TaskShape
from iclbench.layers.event_read_in import event_features, event_features_dim
from iclbench.layers.label_embedding import label_embedding


class PairReadIn(nn.Module):
    """One linear layer for inputs and outputs. If they have different dimensions, the shorter vector is padded with
    zeros, that is, only the first columns of the weight matrix are applied to it.

    Labels of a classification task have a separate embedding. For events, y is replaced by the features of the event.
    """

    def __init__(self, shape: TaskShape, width: int) -> None:
        super().__init__()
        self.marks = shape.marks
        self.y_dim = shape.y_dim if shape.marks is None else event_features_dim(shape.marks)
        self.linear = nn.Linear(max(shape.x_dim, self.y_dim), width)
        self.x_dim = shape.x_dim
        self.labels = None if shape.classes is None else label_embedding(shape.classes, width)

    def inputs(self, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N D"]:
        """Return the tokens of the inputs."""
        return F.linear(x, self.linear.weight[:, : self.x_dim], self.linear.bias)

    def outputs(self, y: Tensor) -> Float[Tensor, "B N D"]:
        """Return the tokens of the outputs: numbers `(B, N, Dy)`, labels `(B, N)` or events `(B, N, 3)`."""
        if self.labels is not None:
            return self.labels(y)
        if self.marks is not None:
            y = event_features(y, self.marks)
        return F.linear(y, self.linear.weight[:, : self.y_dim], self.linear.bias)

    def forward(self, points: Points) -> Float[Tensor, "B T D"]:
        """Return the tokens x_1, y_1, ..., x_N, y_N."""
        pairs = torch.stack([self.inputs(points.x), self.outputs(points.y)], 2)
        return pairs.flatten(1, 2)
