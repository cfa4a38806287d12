"""Latent bottlenecked attentive neural process (Feng et al. 2022, "Latent Bottlenecked Attentive Neural Processes").

In each layer, learned latents attend to the context and then to one another. The model has six layers, as in all
regression configurations of the released code (`num_layers: 6`), and 128 latents of width 64, as in the comparison of
its successor (Feng et al. 2023, appendices A.2 and A.4). The released configurations of LBANP have 8 latents for
Gaussian processes and EMNIST, and 64 or 128 for CelebA. The differences from the released code are those of `eqtnp`:
the skip connections, the initialisation of layers, masks and the standard deviation.

The state holds the latents of all layers, to which queries attend, and the points, to which every layer attends again
in an update. CMANP does not need to store the points.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.latent_backbone import LatentBackbone, LatentSettings
from iclbench.core.episodes import Points
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.layers.latent_layers import CrossLayer, SelfLayer


@dataclass(frozen=True)
class LatentsAndPoints(State):
    """The latents after every layer, and the points of the context."""

    latents: tuple[Float[Tensor, "B M D"], ...]
    context: Points


class LBANP(LatentBackbone[LatentSettings]):
    """Each layer updates the latents U and the target tokens Zt by cross-attention (CA) and self-attention (SA), given
    the embedded context points Zc: U <- CA(U, Zc); U <- SA(U); Zt <- CA(Zt, U)."""

    Settings = LatentSettings

    def __init__(self, settings: LatentSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.reads = nn.ModuleList(CrossLayer(settings) for _ in range(settings.layers))
        self.mixes = nn.ModuleList(SelfLayer(settings) for _ in range(settings.layers))

    def condition(self, context: Points, related: Points | None = None) -> LatentsAndPoints:
        tokens = self.embed_points(self.point_features(context))
        latents, layers = self.latents.expand(len(context), -1, -1), []
        for read, mix in zip(self.reads, self.mixes, strict=True):
            latents = mix(read(latents, tokens, context.mask))
            layers.append(latents)
        return LatentsAndPoints(tuple(layers), context)

    def update(self, state: LatentsAndPoints, points: Points) -> LatentsAndPoints:
        return self.condition(state.context.append(points))

    def latents_by_layer(self, state: LatentsAndPoints) -> tuple[Float[Tensor, "B M D"], ...]:
        return state.latents
