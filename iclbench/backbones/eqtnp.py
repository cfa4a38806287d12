"""EQTNP, the Transformer neural process with efficient queries (Feng et al. 2022, "Latent Bottlenecked Attentive Neural
Processes", which compares with it; the code is released with that of CMANP).

An LBANP without latents: L - 1 layers of self-attention over the embedded context points, and L layers in which the
targets cross-attend, the first the embedded points themselves, each further one what the next layer has made of them.
Time and memory are quadratic in the context, linear in the targets. It differs from the released code in that

- the residual branch carries x; as released it carries LN(x) with `residual = "normed"`;
- layers are drawn independently; the released ones are deep copies that start equal;
- points may be masked, and without any context a target passes its layers unchanged;
- the standard deviation is that of all models here (`spread = "floor"`); the released code has exp(r), with `bound_std`
  0.05 + 0.95 softplus(r): `spread = "exp"`, `"bounded-0.05"`.

492,354 parameters for (dx, dy) = (1, 1), 492,482 for (2, 1), 493,126 for (2, 3), as released.
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
    """The published sizes."""

    layers: PositiveInt = 6
    """Layers of the targets; the context has one less."""
    width: PositiveInt = 64
    """Width D of a token."""
    heads: PositiveInt = 4
    """Attention heads per layer."""
    hidden: PositiveInt = 128
    """Width of the feed-forward blocks after the gate."""
    residual: Residual = "standard"
    """What the residual branch carries: standard (x) or normed (its norm), as in the released code."""


@dataclass(frozen=True)
class EncodedContext(State):
    """The context's vectors before, between and after its layers, and the points, from which an update makes new
    ones."""

    layers: tuple[Float[Tensor, "B N D"], ...]
    context: Points


class EQTNP(SetBackbone[EQTNPSettings]):
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
        """The targets' hidden vectors after each layer."""
        hidden = self.embed_query(self.x_features(x))
        for reader, encoded in zip(self.readers, state.layers, strict=True):
            hidden = reader(hidden, encoded, state.context.mask)
            yield hidden
