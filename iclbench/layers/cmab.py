"""The constant-memory attention block, CMAB (Feng et al. 2023, section 3.1):

    D <- SA(CA(B, data))        I <- SA(CA(I, D))

Every self-attention SA and cross-attention CA is a layer of `latent_layers` (pre-norm, residual, feed-forward). B are
the M learned latents of the block, and I are the output latents of the previous block. Only the first cross-attention
reads the data, and its queries do not depend on the data. Each block therefore has a running state (`running_softmax`),
and `StreamedAttention` updates the states of all blocks of a stack in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.layers.latent_layers import CrossLayer, LatentSizes, SelfLayer
from iclbench.layers.prefix_softmax import prefix_states
from iclbench.layers.running_softmax import RunningSoftmax, fold


class CMAB(nn.Module):
    """One constant-memory attention block. `forward` receives the output of the first cross-attention, which reads the
    data."""

    def __init__(self, sizes: LatentSizes) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(sizes.latents, sizes.width))
        self.read = CrossLayer(sizes)
        self.mix_read = SelfLayer(sizes)
        self.pass_on = CrossLayer(sizes)
        self.mix_passed = SelfLayer(sizes)

    def forward(
        self, latents: Float[Tensor, "B M D"], attended: Float[Tensor, "B H M Dh"], has_data: Bool[Tensor, " B"]
    ) -> Float[Tensor, "B M D"]:
        """Return the latents for the next block.

        Args:
            latents: output of the previous block.
            attended: outputs of the heads of CA(B, data).
            has_data: episodes that have data; in other episodes B is used unchanged.
        """
        rows, normed = (t.expand(len(latents), -1, -1) for t in (self.latents, self.read.norm(self.latents)))
        summary = self.mix_read(self.read.finish(rows, normed, attended, has_data))
        return self.mix_passed(self.pass_on(latents, summary))


class StreamedAttention:
    """The first cross-attentions of all blocks of a stack, computed in one pass.

    The constructor computes tensors from the current weights of the blocks, and gradients flow back to these weights.
    Each forward pass therefore needs a new instance. The scale and shift of a norm are merged into the projections
    after it, so that all blocks share one normalisation of the data and one matrix product.

    Args:
        blocks: the blocks of the stack.
        weights: weights and biases of the network that embeds a point.
        embed: function that applies this network, given its weights and the points.
        dtype: data type of the computation from the points to the state.
    """

    def __init__(
        self,
        blocks: Sequence[CMAB],
        weights: Sequence[Tensor],
        embed: Callable[[Sequence[Tensor], Points], Float[Tensor, "B N D"]],
        dtype: torch.dtype,
    ) -> None:
        reads = [block.read for block in blocks]
        self.embed = embed
        self.eps = reads[0].norm.eps
        self.heads = reads[0].heads
        rows = [read.split(read.q(read.norm(block.latents))) for block, read in zip(blocks, reads, strict=True)]
        self.queries = torch.stack(rows).to(dtype) * (rows[0].shape[-1] ** -0.5)
        self.weights = [t.to(dtype) for t in (*_projections(reads), *weights)]

    def empty(self, batch: int) -> RunningSoftmax:
        """Return the state before any point."""
        return RunningSoftmax.empty(batch, self.queries)

    def fold(self, points: Points, chunk: int) -> RunningSoftmax:
        """Return the state after all points, with at most `chunk` points in memory at a time."""
        return fold(self.queries, self.weights, self._keys_values, points, chunk)

    def prefixes(self, before: RunningSoftmax, points: Points) -> tuple[RunningSoftmax, RunningSoftmax]:
        """Return the states after the first 0, 1, ..., N - 1 points that follow the state `before`, in the layout of
        `prefix_states`, and the state after all points."""
        keys, values = self._keys_values(self.weights, points)
        return prefix_states(before, self.queries, keys, values, points.mask)

    def _keys_values(self, weights: Sequence[Tensor], points: Points) -> tuple[Tensor, Tensor]:
        projection, bias, *embedding = weights
        tokens = self.embed(embedding, points)
        tokens = F.layer_norm(tokens, tokens.shape[-1:], eps=self.eps)
        projected = F.linear(tokens, projection, bias).unflatten(
            -1, (2, -1, self.heads, tokens.shape[-1] // self.heads)
        )
        keys, values = projected.permute(2, 0, 3, 4, 1, 5)
        return keys, values


def _projections(reads: Sequence[CrossLayer]) -> tuple[Float[Tensor, "rows D"], Float[Tensor, " rows"]]:
    """Return the weights and biases for the keys and then for the values of all layers. They apply to data that are
    normalised without scale and shift."""
    projection = torch.stack([t for name in ("k", "v") for t in (getattr(read, name).weight for read in reads)])
    scale = torch.stack([read.norm_data.weight for read in reads]).repeat(2, 1)
    shift = torch.stack([read.norm_data.bias for read in reads]).repeat(2, 1)
    return (projection * scale[:, None]).flatten(0, 1), (projection @ shift.unsqueeze(-1)).flatten()
