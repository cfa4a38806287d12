"""Tokens of encoded images and labels, as in Chan et al. 2022 and CoQE.

Image features and label embeddings have the same width E, and the same linear layers are applied to both: a layer from
E to the width D of the model, if E and D differ, and the read-in. Labels are therefore embedded in the space of the
image features, and not directly in the space of the model's tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.layers.label_embedding import label_embedding


class FeatureReadIn(nn.Module):
    """Maps features `(B, N, E)` and labels `(B, N)` to tokens.

    Args:
        features: number of features E.
        classes: number of labels.
        width: width D of a token.

    Attributes:
        reduce: linear layer from E to D; the identity if they are equal.
        linear: the read-in, from D to D.
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
        """Return the tokens x_1, y_1, ..., x_N, y_N."""
        return torch.stack([self.inputs(points.x), self.outputs(points.y)], 2).flatten(1, 2)
