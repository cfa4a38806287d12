"""Tokens of encoded images and labels as Chan et al. 2022 and CoQE make them: features and label embeddings are equally
wide, E, and all tokens go through the same linear layers, first to the width of the model where E is another, then the
read-in. So features and labels meet in the space of the encoder, not only in that of the model.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.layers.label_embedding import label_embedding


class FeatureReadIn(nn.Module):
    """Features `(B, N, E)` and labels `(B, N)` to tokens.

    Args:
        features: E.
        classes: number of labels.
        width: D.

    Attributes:
        reduce: from E to D; the identity where they are equal.
        linear: from D to D.
    """

    def __init__(self, features: int, classes: int, width: int) -> None:
        super().__init__()
        self.labels = label_embedding(classes, features)
        self.reduce: nn.Module = nn.Identity() if features == width else nn.Linear(features, width)
        self.linear = nn.Linear(width, width)

    def inputs(self, x: Float[Tensor, "B N E"]) -> Float[Tensor, "B N D"]:
        return self.linear(self.reduce(x))

    def outputs(self, y: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        return self.linear(self.reduce(self.labels(y)))

    def forward(self, points: Points) -> Float[Tensor, "B T D"]:
        """Tokens x_1, y_1, ..., x_N, y_N."""
        return torch.stack([self.inputs(points.x), self.outputs(points.y)], 2).flatten(1, 2)
