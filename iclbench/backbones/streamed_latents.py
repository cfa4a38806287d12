"""Base class of CMANP and CMHP, the models with constant-memory attention blocks: their state and its updates.

The state is the running softmax of the first cross-attention of each block (`running_softmax`). Points can be added in
chunks of any size and in any order, and can be removed again.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.base import BackboneSettings
from iclbench.core.episodes import Points
from iclbench.core.settings import PositiveInt
from iclbench.layers.cmab import CMAB, StreamedAttention
from iclbench.layers.running_softmax import RunningSoftmax


class StreamedSettings(BackboneSettings):
    """Settings of the state and its updates."""

    chunk: PositiveInt = 128
    """Points in memory at once; a trade-off between memory and speed that does not change predictions."""
    state_dtype: Literal["float32", "float64"] = "float32"
    """Precision of the state. With float64 the computation from points to the state is also in double precision;
    further layers have the precision of the weights."""


class StreamedLatents(nn.Module):
    """State and updates of a backbone whose constructor creates `latents`, the initial latents, and `blocks` of type
    `CMAB`."""

    removes_points: ClassVar[bool] = True
    if TYPE_CHECKING:
        settings: Any  # a StreamedSettings
        latents: nn.Parameter
        blocks: nn.ModuleList

    @abstractmethod
    def embedding_weights(self) -> list[Tensor]:
        """Return the weights of the network that embeds a point."""

    @abstractmethod
    def embed_with(self, weights: Sequence[Tensor], points: Points) -> Float[Tensor, "B N D"]:
        """Return the embeddings of points with these weights, which may have another precision."""

    def condition(self, context: Points, related: Points | None = None) -> RunningSoftmax:
        with self.streamed_attention() as attention:
            return attention.fold(context, self.settings.chunk)

    def update(self, state: RunningSoftmax, points: Points) -> RunningSoftmax:
        return state.merge(self.condition(points))

    def remove(self, state: RunningSoftmax, points: Points) -> RunningSoftmax:
        """Return the state without points that were added before.

        Raises:
            UsageError: the remaining share of attention is too small (see `RunningSoftmax.remove`).
        """
        return state.remove(self.condition(points))

    def latents_by_layer(self, state: RunningSoftmax) -> Iterator[Float[Tensor, "B M D"]]:
        """Yield the output latents of each block, first to last."""
        attended, has_data = state.e.to(self.latents.dtype), ~state.is_empty
        latents = self.latents.expand(len(attended), -1, -1)
        for layer, block in enumerate(self.blocks):
            latents = block(latents, attended[:, layer], has_data)
            yield latents

    @contextlib.contextmanager
    def streamed_attention(self) -> Iterator[StreamedAttention]:
        """Create the first cross-attentions of all blocks, with at least the precision of the state."""
        dtype = torch.promote_types(self.latents.dtype, getattr(torch, self.settings.state_dtype))
        blocks = cast("list[CMAB]", list(self.blocks))
        with torch.autocast(self.latents.device.type, enabled=False):
            yield StreamedAttention(blocks, self.embedding_weights(), self.embed_with, dtype)
