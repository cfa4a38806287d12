"""EQTNP, the Transformer neural process with efficient queries (a baseline in Feng et al. 2022, "Latent Bottlenecked
Attentive Neural Processes"; its code is in the release of CMANP).

The model is an LBANP without latents. It has L - 1 layers of self-attention over the embedded context points, and L
layers in which targets cross-attend to the context: the first layer to the embedded points, and layer i to the output
of self-attention layer i - 1. Time and memory are quadratic in the number of context points and linear in the number of
targets. Differences from the released code:

- The skip connections add x; in the released code they add LN(x) (`residual = "normed"`).
- Layers are initialised independently; in the released code they are deep copies with the same initial
  weights.
- Points may be masked. Without context points, the layers do not change the targets.
- The standard deviation is computed as in all other models (`spread = "floor"`); in the released code it is exp(r), or,
  with `bound_std`, 0.05 + 0.95 softplus(r) (`spread = "exp"`, `"bounded-0.05"`).

The model has 492,354 parameters for (dx, dy) = (1, 1), 492,482 for (2, 1), 493,126 for (2, 3), as released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.latent_layers import CrossLayer, Residual, SelfLayer
from iclbench.layers.perceptron import perceptron


class EQTNPSettings(SetSettings):
    """Settings of eqtnp. The defaults are the published sizes."""

    layers: PositiveInt = 6
    """Layers of the targets; the context has one layer fewer."""
    width: PositiveInt = 64
    """Width D of a token."""
    heads: PositiveInt = 4
    """Attention heads per layer."""
    hidden: PositiveInt = 128
    """Width of the feed-forward blocks after the gate."""
    residual: Residual = "standard"
    """What each skip connection adds: x (standard), or LN(x) as in the released code (normed)."""


@dataclass(frozen=True)
class EncodedContext(State):
    """The context's vectors before, between and after its layers, and the points, from which an update recomputes
    them."""

    layers: tuple[Float[Tensor, "B N D"], ...]
    context: Points


class EQTNP(SetBackbone[EQTNPSettings]):
    """Each layer updates the target tokens Zt by cross-attention (CA) and then the context tokens Zc by self-attention
    (SA): Zt <- CA(Zt, Zc); Zc <- SA(Zc). The last layer updates only Zt."""

    Settings = EQTNPSettings

    def __init__(self, settings: EQTNPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width = settings.width
        self.embed_points = perceptron(self.x_features_dim + self.y_features_dim, *[width] * 4)
        self.embed_query = perceptron(self.x_features_dim, *[width] * 4)
        self.among = nn.ModuleList(SelfLayer(settings) for _ in range(settings.layers - 1))
        self.readers = nn.ModuleList(CrossLayer(settings) for _ in range(settings.layers))
        self.decoder = nn.Sequential(nn.LayerNorm(width), *perceptron(width, 2 * width, shape.raw_dim))

    def condition(self, context: Points, related: Points | None = None) -> EncodedContext:
        layers = [self.embed_points(torch.cat([self.x_features(context.x), self.y_features(context.y)], -1))]
        for layer in self.among:
            layers.append(layer(layers[-1], context.mask))
        return EncodedContext(tuple(layers), context)

    def update(self, state: EncodedContext, points: Points) -> EncodedContext:
        return self.condition(state.context.append(points))

    def query(self, state: EncodedContext, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        *_, hidden = self.read_layers(state, x)
        return self.decode(hidden)

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        return [self.decode(hidden) for hidden in self.read_layers(self.condition(context), x_target)]

    def read_layers(self, state: EncodedContext, x: Float[Tensor, "B Q Dx"]) -> Iterator[Float[Tensor, "B Q D"]]:
        """Yield the targets' hidden vectors after each layer."""
        hidden = self.embed_query(self.x_features(x))
        for reader, encoded in zip(self.readers, state.layers, strict=True):
            hidden = reader(hidden, encoded, state.context.mask)
            yield hidden
