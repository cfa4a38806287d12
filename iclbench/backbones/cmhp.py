"""Constant Memory Hawkes Process (Feng et al. 2023, section 3.3): a Transformer Hawkes process whose layers are
constant-memory attention blocks (`cmab`).

The flattened latents of the last block are decoded to the time and the mark of the next event. The state is the running
softmax of the first cross-attention of each block. It does not grow with the number of events. An event updates the
state at constant cost and need not be stored. Before the first event, the latents have their learned values.

The attention to events does not depend on their order, so the model reads a set of events. Only the encoding of
absolute times gives the order of the events. With `encode=gap`, only the gap before an event is encoded, and the order
is unknown.

The paper gives no sizes for this model. Layers that also occur in `thp` have the same sizes as there. The two blocks
have the sizes of the paper's CMANP (4 heads, feed-forward networks of width 128) and L_I = L_B = 16 latents, and the
hidden layer of the read-out has the width of a token. With K marks, the model has

    64 K (events) + 1,024 (latents) + 2 · 167,680 (blocks) + 67,160 (gap) + 1,025 K (mark) = 403,544 + 1,089 K

parameters. The paper does not mention dropout. This model has no dropout, because its state would depend on it.

A training step uses all prefixes of a sequence: one scan computes the state after every prefix (`prefix_softmax`), and
the blocks process every prefix as a separate episode. Sequences longer than `chunk` are processed in chunks of
prefixes, so that memory beyond the states does not grow with the number of events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from iclbench.backbones.event_backbone import EventBackbone, EventSettings
from iclbench.backbones.streamed_latents import StreamedLatents, StreamedSettings
from iclbench.core.episodes import Points
from iclbench.core.events import events_of
from iclbench.core.predictions import Prediction
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.cmab import CMAB
from iclbench.layers.event_embedding import EncodedTime
from iclbench.layers.latent_layers import Residual
from iclbench.layers.running_softmax import RunningSoftmax

# Width of a token at which the map from latents to marks must not take more than half of a budget; see `at_budget`.
_MIN_WIDTH = 16


class CMHPSettings(StreamedSettings, EventSettings):
    """Settings of the constant-memory model."""

    encode: EncodedTime = "time"
    """The time in the sinusoidal encoding of an event: gap (before the event) or time (absolute). With gap, the order
    of the events is unknown."""
    heads: PositiveInt = 4
    """Attention heads per layer."""
    hidden: PositiveInt = 128
    """Width of the feed-forward blocks after the gate."""
    latents: PositiveInt = 16
    """Number of latent vectors in each block, and of those passed from block to block."""
    residual: Residual = "standard"
    """What each skip connection adds: x (standard), or LN(x) as in the released code of CMANP (normed)."""


class CMHP(StreamedLatents, EventBackbone[CMHPSettings]):
    """Each layer updates the latents U by cross-attention (CA) and self-attention (SA), given the embedded events Z and
    learned latents B: U <- SA(CA(U, SA(CA(B, Z)))). The flattened latents of the last layer are decoded to the gap and
    the mark of the next event."""

    Settings = CMHPSettings
    order = "set"
    computed_by = frozenset({"chunk"})

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Return the settings for a budget, with fewer latents if the map from latents to marks would take more than
        half of the parameters."""
        sizes = super().at_budget(budget, shape)
        while sizes["latents"] > 1 and 2 * sizes["latents"] * _MIN_WIDTH * shape.outputs > budget:
            sizes["latents"] //= 2
        return sizes

    def __init__(self, settings: CMHPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape, settings.latents * settings.width)
        self.latents = nn.Parameter(torch.randn(settings.latents, settings.width))
        self.blocks = nn.ModuleList(CMAB(settings) for _ in range(settings.layers))

    def condition(self, context: Points, related: Points | None = None) -> RunningSoftmax:
        return super().condition(events_of(context))

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """Predict the next event after every prefix, with `chunk` prefixes at a time."""
        count = points.count if x_query is None else x_query.shape[1]
        return self.read(torch.cat(list(self._raw_outputs(points, range(count) if prefixes is None else prefixes)), 1))

    def _raw_outputs(self, points: Points, counts: Sequence[int]) -> Iterator[Float[Tensor, "B n raw"]]:
        """Yield the raw outputs after each number of points in `counts`, which must be in ascending order."""
        batch, chunk = len(points), self.settings.chunk
        yield self.latents.new_zeros(batch, 0, self.shape.raw_dim)
        state = self.condition(points.span(0, 0))
        for start in range(0, max(counts, default=-1) + 1, chunk):
            with self.streamed_attention() as attention:
                states, state = attention.prefixes(state, points.span(start, start + chunk))
            in_chunk = [n - start for n in counts if start <= n < start + chunk]
            if in_chunk:
                rows = torch.arange(len(states.log_c), device=states.e.device).view(batch, -1)[:, in_chunk]
                states = states[rows.flatten()]
                if torch.is_grad_enabled() and points.count > chunk:
                    # For long sequences, the backward pass recomputes the blocks, one chunk of prefixes at a time.
                    raw = checkpoint(self._decode, states, use_reentrant=False, preserve_rng_state=False)
                else:
                    raw = self._decode(states)
                yield raw.unflatten(0, (batch, -1))

    def _decode(self, state: RunningSoftmax) -> Float[Tensor, "B raw"]:
        *_, summary = self.summaries(state)
        return self.read_out(summary)

    def summaries(self, state: RunningSoftmax) -> Iterator[Float[Tensor, "B summary"]]:
        return (latents.flatten(1) for latents in self.latents_by_layer(state))

    def embedding_weights(self) -> list[Tensor]:
        return [self.embed.marks.weight]

    def embed_with(self, weights: Sequence[Tensor], points: Points) -> Float[Tensor, "B N D"]:
        vectors, times = self.embed(points.y, weights[0])
        return vectors + times
