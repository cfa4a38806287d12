"""Base class of LBANP and CMANP: latents summarise the points in each layer, and layer i of the queries attends to the
latents of layer i (Feng et al. 2022, section 3.2; Feng et al. 2023, appendix A.1).

Two networks of four linear layers embed context points (x, y) and queries x. Queries attend only to latents, so
their cost does not depend on the number of points. Both models ignore related datasets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.latent_layers import CrossLayer, Residual
from iclbench.layers.perceptron import perceptron


class LatentSettings(SetSettings):
    """Settings that LBANP and CMANP share."""

    layers: PositiveInt = 6
    """Blocks of attention and feed-forward layers."""
    width: PositiveInt = 64
    """Width D of a token."""
    heads: PositiveInt = 4
    """Attention heads per layer."""
    hidden: PositiveInt = 128
    """Width of the feed-forward blocks after the gate."""
    latents: PositiveInt = 128
    """Number of latent vectors M that summarise the context."""
    residual: Residual = "standard"
    """What each skip connection adds: x (standard), or LN(x) as in the released code (normed)."""


_Settings = TypeVar("_Settings", bound=LatentSettings)


class LatentBackbone(SetBackbone[_Settings], abstract=True):
    """Embeddings, initial latents, the layers of the queries and the read-out."""

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width = settings.width
        points = self.x_features_dim + self.y_features_dim
        self.embed_points = perceptron(points, *[width] * 4)
        self.embed_query = perceptron(self.x_features_dim, *[width] * 4)
        self.latents = nn.Parameter(torch.randn(settings.latents, width))
        self.readers = nn.ModuleList(CrossLayer(settings) for _ in range(settings.layers))
        # The predictor of these papers has a norm and one hidden layer of twice the width.
        self.decoder = nn.Sequential(nn.LayerNorm(width), *perceptron(width, 2 * width, shape.raw_dim))

    @abstractmethod
    def latents_by_layer(self, state: Any) -> Iterable[Float[Tensor, "B M D"]]:
        """Return the latents to which queries attend in each layer, first to last."""

    def point_features(self, points: Points) -> Float[Tensor, "B N F"]:
        """Concatenate inputs and outputs (one-hot labels), as input of `embed_points`."""
        return torch.cat([self.x_features(points.x), self.y_features(points.y)], -1)

    def query(self, state: Any, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return self.read_latents(self.latents_by_layer(state), x)

    def read_latents(self, latents: Iterable[Float[Tensor, "B M D"]], x: Float[Tensor, "B Q Dx"]) -> Prediction:
        """Return the predictions from the latents of all layers, first to last."""
        *_, hidden = self.query_layers(latents, x)
        return self.decode(hidden)

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        latents = self.latents_by_layer(self.condition(context))
        return [self.decode(hidden) for hidden in self.query_layers(latents, x_target)]

    def query_layers(
        self, latents: Iterable[Float[Tensor, "B M D"]], x: Float[Tensor, "B Q Dx"]
    ) -> Iterator[Float[Tensor, "B Q D"]]:
        """Yield the targets' hidden vectors after each layer."""
        hidden = self.embed_query(self.x_features(x))
        for reader, layer_latents in zip(self.readers, latents, strict=True):
            hidden = reader(hidden, layer_latents)
            yield hidden
