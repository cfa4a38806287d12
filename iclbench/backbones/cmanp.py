"""Constant-memory attentive neural process (Feng et al. 2023, sections 3.2 and A.1).

The model is an LBANP whose layers are constant-memory attention blocks (`cmab`). The state is the running softmax of
the first cross-attention of each block. It does not grow with the number of points, each new point updates it in
constant time, and points can be removed from it. For each query, the latents are computed from the state, and the time
for this does not depend on the number of points. The differences from the released code are those of `eqtnp`: the skip
connections, the initialisation of layers, masks and the standard deviation.

Points (including their embeddings) and queries are processed in chunks of `chunk`, so that memory, except for the
predictions, does not grow with their number. In training, the backward pass recomputes the chunks of the context, so
that memory does not grow with the context either; all queries with gradients are in memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.latent_backbone import LatentBackbone, LatentSettings
from iclbench.backbones.streamed_latents import StreamedLatents, StreamedSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import join_positions
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.cmab import CMAB
from iclbench.layers.running_softmax import RunningSoftmax


class CMANPSettings(StreamedSettings, LatentSettings):
    """Settings of the constant-memory model."""

    chunk: PositiveInt = 128
    """Points or queries in memory at once; a trade-off between memory and speed that does not change predictions."""


_Settings = TypeVar("_Settings", bound=CMANPSettings)


class CMANP(StreamedLatents, LatentBackbone[_Settings]):
    """Each layer updates the latents U and the target tokens Zt by cross-attention (CA) and self-attention (SA), given
    the embedded context points Zc. With learned latents B in each layer, the steps are U <- SA(CA(U, SA(CA(B, Zc))));
    Zt <- CA(Zt, U). Only CA(B, Zc) reads the points, and its queries do not depend on them."""

    Settings: ClassVar[type[CMANPSettings]] = CMANPSettings
    computed_by = frozenset({"chunk"})

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.blocks = nn.ModuleList(CMAB(settings) for _ in range(settings.layers))

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """Predict after every prefix, in one pass that updates the state from prefix to prefix."""
        x_query = points.x if x_query is None else x_query
        state, position, answers = self.condition(points.span(0, 0)), 0, []
        for n in range(points.count) if prefixes is None else prefixes:
            state, position = self.update(state, points.span(position, n)), n
            answers.append(self.query(state, x_query[:, n : n + 1]))
        return join_positions(answers)

    def query(self, state: RunningSoftmax, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        chunk = self.settings.chunk
        if torch.is_grad_enabled() or x.shape[1] <= chunk:
            return super().query(state, x)
        latents = list(self.latents_by_layer(state))
        return join_positions([self.read_latents(latents, chunk_x) for chunk_x in x.split(chunk, 1)])

    def embedding_weights(self) -> list[Tensor]:
        linears = [layer for layer in self.embed_points if isinstance(layer, nn.Linear)]
        return [t for linear in linears for t in (linear.weight, linear.bias)]

    def embed_with(self, weights: Sequence[Tensor], points: Points) -> Float[Tensor, "B N D"]:
        """Apply `embed_points` with the given weights."""
        hidden = self.point_features(points.to(dtype=weights[0].dtype))
        for i in range(0, len(weights), 2):
            hidden = F.linear(F.relu(hidden) if i else hidden, weights[i], weights[i + 1])
        return hidden
