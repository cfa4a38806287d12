"""TNP-D (Nguyen and Grover 2022, "Transformer Neural Processes", section 3.2), as its authors released it.

The model is one Transformer with post-norm layers over context points (x, y) and targets (x, 0). Every row attends only
to context points: targets attend neither to one another nor to themselves, and a target cannot be distinguished from a
context point with output 0. `tnp` is the later pre-norm version of this model.

Context rows do not attend to targets, so keys and values of all layers are computed once per context. The released code
runs PyTorch's encoder with a corresponding mask on the complete sequence for every query. The outputs are the same
(tested against that encoder). Differences from the released code:

- Layers are initialised independently; in the released code they are deep copies with the same initial
  weights.
- The attention output without context is 0; in the released code it is NaN.
- The standard deviation is computed as in all other models (`spread = "floor"`). In the released code it is exp(r)
  (`spread = "exp"`) or, with `bound_std`, 0.05 + 0.95 softplus(r) (`spread = "bounded-0.05"`).
- Points may be masked, so a batch can hold contexts of different sizes; the released code draws one size per batch.

The model has as many parameters as the released one: 222,082 for (dx, dy) = (1, 1), 222,146 for (2, 1) and 222,790 for
(2, 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.transformer_np import TransformerNP, TransformerNPSettings
from iclbench.core.episodes import Points
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import KeysAndValues
from iclbench.layers.encoder_layer import EncoderLayer
from iclbench.layers.perceptron import perceptron


class TNPDSettings(TransformerNPSettings):
    """Settings of tnp-d. The defaults are the published sizes, which are the same for all tasks."""

    layers: PositiveInt = 6
    """Transformer layers."""
    width: PositiveInt = 64
    """Width D of a token."""
    heads: PositiveInt = 4
    """Attention heads per layer."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default twice the width of a token."""

    @property
    def hidden(self) -> int:
        """Hidden width of feed-forward networks and read-out."""
        return self.feedforward or 2 * self.width


_Settings = TypeVar("_Settings", bound=TNPDSettings)


class TNPD(TransformerNP[_Settings]):
    """Each layer updates the context tokens Zc and the target tokens Zt with the same weights: Zc <- Layer(Zc, Zc); Zt
    <- Layer(Zt, Zc)."""

    Settings: ClassVar[type[TNPDSettings]] = TNPDSettings

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width = settings.width
        self.embedding = perceptron(self.x_features_dim + self.y_features_dim, *[width] * 4)
        self.decoder = perceptron(width, settings.hidden, shape.raw_dim)

    def stack(self, layers: int | None = None) -> Any:
        settings = self.settings
        count = settings.layers if layers is None else layers
        return nn.ModuleList(EncoderLayer(settings.width, settings.heads, settings.hidden) for _ in range(count))

    def embed(self, points: Points) -> Float[Tensor, "B N D"]:
        """Embed points as tokens (x, y)."""
        return self.embedding(torch.cat([self.x_features(points.x), self.y_features(points.y)], -1))

    def embed_targets(self, x: Float[Tensor, "*batch Dx"]) -> Float[Tensor, "*batch D"]:
        """Embed targets as tokens (x, 0)."""
        features = self.x_features(x)
        return self.embedding(torch.cat([features, features.new_zeros(*x.shape[:-1], self.y_features_dim)], -1))

    def memories(self, context: Points, related: Points | None) -> Iterator[KeysAndValues]:
        z = self.embed(context)
        for i, layer in enumerate(self.targets):  # context and targets share the layers
            memory = layer.keys(z, context.mask)
            yield memory
            if i < len(self.targets) - 1:
                z = layer.attend(z, memory)
