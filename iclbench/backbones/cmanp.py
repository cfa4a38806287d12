"""Constant-memory attentive neural process (Feng et al. 2023, sections 3.2 and A.1).

An LBANP whose layers are constant-memory attention blocks (`cmab`). The state is what the first cross-attention of each
block keeps of the data, for all blocks: it does not grow with the points, takes in new ones in constant time, and can
forget points it is shown again. The latents are computed from it when something is asked, in a time that does not
depend on the number of points either. The model differs from the released code as `eqtnp` does: in the residual branch,
the drawing of layers, masks and the standard deviation.

Points are taken in by portions of `chunk`, embedding included, and queries are answered by as many: beyond the answers
themselves memory grows with neither. In training the backward pass computes the portions of the context again, so that
memory does not grow with it there; queries that are differentiated are held all at once.
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
    """Points or queries held at once: memory against speed, not the answer."""


_Settings = TypeVar("_Settings", bound=CMANPSettings)


class CMANP(StreamedLatents, LatentBackbone[_Settings]):
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
        """One walk along the points from state to state."""
        x_query = points.x if x_query is None else x_query
        state, read_to, answers = self.condition(points.span(0, 0)), 0, []
        for n in range(points.count) if prefixes is None else prefixes:
            state, read_to = self.update(state, points.span(read_to, n)), n
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
        """`embed_points` with other weights."""
        hidden = self.point_features(points.to(dtype=weights[0].dtype))
        for i in range(0, len(weights), 2):
            hidden = F.linear(F.relu(hidden) if i else hidden, weights[i], weights[i + 1])
        return hidden
