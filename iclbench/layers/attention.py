"""The attention layer of Transformer neural processes; it supports masks.

The layer is pre-norm with residual connections: q = q + Attention(LN(q), LN(kv)), then q = q + FF(LN'(q)). The same LN
is applied to queries and keys (ICICL-TNP paper, appendix G; cambridge-mlg's code). FF has one hidden layer, as in that
code; appendix G describes two. The method `keys` computes keys and values once, so that many queries can share them.

If a query has no valid key, the layer returns it unchanged, so an absent dataset has no effect. The authors' layer
still adds the output bias and the feed-forward network to such a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.core.records import TensorRecord
from iclbench.layers.perceptron import perceptron


@dataclass(frozen=True)
class KeysAndValues(TensorRecord):
    """Keys and values of each attention head. The leading axes are episodes, or episodes and samples.

    Attributes:
        keys, values: one vector per head and token.
        mask: valid tokens; None means all.
    """

    keys: Float[Tensor, "*batch H T C"]
    values: Float[Tensor, "*batch H T C"]
    mask: Bool[Tensor, "*batch T"] | None = None


def check_heads(width: int, heads: int, setting: str = "width") -> None:
    """Check that the width is a multiple of the number of heads.

    Args:
        width: width D of a token.
        heads: number of attention heads.
        setting: name of the setting that holds the width, for the error message.

    Raises:
        UsageError: the width is not a multiple of the number of heads.
    """
    if width % heads:
        multiple = width + -width % heads
        raise UsageError(
            f"backbone.{setting}={width} is not a multiple of backbone.heads={heads}; {multiple} is", code="bad-value"
        )


class AttentionLayer(nn.Module):
    """Cross-attention or self-attention, followed by a feed-forward network. The layer has 6 D² + 7 D parameters if the
    hidden width of the network is D.

    Args:
        width: width D of a token.
        heads: number of attention heads.
        feedforward: hidden width of the feed-forward network; None means D.

    Raises:
        UsageError: the width is not a multiple of the number of heads.
    """

    def __init__(self, width: int, heads: int, feedforward: int | None = None) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        # Initialised like two separate layers, because the bound 1 / sqrt(D) depends only on the input width.
        self.kv = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.norm_inner = nn.LayerNorm(width)
        self.feed_forward = perceptron(width, feedforward or width, width)

    def keys(self, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None) -> KeysAndValues:
        """Compute the keys and values of the tokens."""
        return self._project(self.norm(tokens), mask)

    def attend(self, queries: Float[Tensor, "B Q D"], memory: KeysAndValues) -> Float[Tensor, "B Q D"]:
        """Return the queries after attention to `memory`."""
        return self._attend(queries, self.norm(queries), memory)

    def forward(
        self,
        queries: Float[Tensor, "B Q D"],
        tokens: Float[Tensor, "B T D"] | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Return the queries after attention to the tokens.

        Args:
            queries: tokens to update.
            tokens: tokens that the queries attend to; None means the queries themselves (self-attention).
            mask: valid tokens; None means all.
        """
        if tokens is not None:
            return self.attend(queries, self.keys(tokens, mask))
        normed = self.norm(queries)
        return self._attend(queries, normed, self._project(normed, mask))

    def _project(self, normed: Tensor, mask: Tensor | None) -> KeysAndValues:
        k, v = self.kv(normed).chunk(2, -1)
        return KeysAndValues(self._by_head(k), self._by_head(v), mask)

    def _attend(self, queries: Tensor, normed: Tensor, memory: KeysAndValues) -> Tensor:
        if memory.keys.shape[2] == 0:
            return queries
        visible, has_keys = None, None
        if memory.mask is not None:
            has_keys = memory.mask.any(1)[:, None, None]
            # Without valid keys, queries attend to all tokens, so that no kernel divides by zero; they are returned
            # unchanged below.
            visible = (memory.mask[:, None] | ~has_keys).unsqueeze(1)
        q = self._by_head(self.q(normed))
        mixed = F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=visible)
        hidden = queries + self.out(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + self.feed_forward(self.norm_inner(hidden))
        return hidden if has_keys is None else torch.where(has_keys, hidden, queries)

    def _by_head(self, t: Tensor) -> Tensor:
        """Reshape (B, T, D) to (B, H, T, D / H)."""
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
