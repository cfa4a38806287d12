"""Base class of Transformer neural processes: points are tokens, and targets attend to a memory in every layer.

A context point or related point is the token (x, y, 0), and a target is the token (x, 0, 1); the last entry is a flag
for a missing y. One perceptron embeds all tokens (as in cambridge-mlg's code; the papers do not specify the embedding).
Targets do not affect the memory, so the memory of all layers is computed once per context, and a query costs one token.

The model differs in two ways from the paper or the code. The authors clone layers by deep copy, so all layers have the
same initial weights; here, layers are initialised independently. Appendix G of the ICICL-TNP paper describes
feed-forward networks with two hidden layers; here they have one, as in the code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import AttentionLayer, KeysAndValues
from iclbench.layers.perceptron import perceptron


class TransformerNPSettings(SetSettings):
    """Settings of Transformer neural processes: by default, five layers and eight heads of width 16."""

    layers: PositiveInt = 5
    """Transformer blocks."""
    heads: PositiveInt = 8
    """Attention heads per layer."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default the width of a token."""


@dataclass(frozen=True)
class LayeredMemory(State):
    """Keys and values to which targets attend in every layer, and the points, from which an update recomputes them."""

    layers: tuple[KeysAndValues, ...]
    context: Points
    related: Points | None = None


_Settings = TypeVar("_Settings", bound=TransformerNPSettings)


class TransformerNP(SetBackbone[_Settings], abstract=True):
    """Embedding, layers of the targets, and decoder; a subclass provides the memory."""

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width = settings.width
        self.embedding = perceptron(self.x_features_dim + self.y_features_dim + 1, width, width, width)
        self.targets = self.stack()  # layers in which the targets attend to the memory

    def stack(self, layers: int | None = None) -> Any:
        """Create a module list of `layers` attention layers; None means as many as in the settings."""
        settings, count = self.settings, self.settings.layers if layers is None else layers
        return nn.ModuleList(AttentionLayer(settings.width, settings.heads, settings.feedforward) for _ in range(count))

    @abstractmethod
    def memories(self, context: Points, related: Points | None) -> Iterator[KeysAndValues]:
        """Yield the keys and values to which targets attend in each layer, first to last."""

    def embed(self, points: Points) -> Float[Tensor, "B N D"]:
        """Embed points as tokens (x, y, 0)."""
        x = self.x_features(points.x)
        return self.embedding(torch.cat([x, self.y_features(points.y), x.new_zeros(*x.shape[:-1], 1)], -1))

    def embed_targets(self, x: Float[Tensor, "B Q Dx"]) -> Float[Tensor, "B Q D"]:
        """Embed targets as tokens (x, 0, 1)."""
        flag = x.new_tensor([0.0] * self.y_features_dim + [1.0]).expand(*x.shape[:-1], -1)
        return self.embedding(torch.cat([self.x_features(x), flag], -1))

    def condition(self, context: Points, related: Points | None = None) -> LayeredMemory:
        related = related if self.uses_related else None
        return LayeredMemory(tuple(self.memories(context, related)), context, related)

    def query(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        *_, hidden = self.read_layers(state, x)
        return self.decode(hidden)

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        return [self.decode(hidden) for hidden in self.read_layers(self.condition(context, related), x_target)]

    def update(self, state: LayeredMemory, points: Points) -> LayeredMemory:
        return self.condition(state.context.append(points), state.related)

    def read_layers(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"]) -> Iterator[Float[Tensor, "B Q D"]]:
        """Yield the targets' hidden vectors after each layer."""
        hidden = self.embed_targets(x)
        for layer, memory in zip(self.targets, state.layers, strict=True):
            hidden = layer.attend(hidden, memory)
            yield hidden
