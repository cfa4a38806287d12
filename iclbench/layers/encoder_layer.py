"""The layer of TNP-D and its variants: PyTorch's Transformer encoder layer, with separate access to queries and keys.

    x <- LN(x + Attention(x, memory))        x <- LN'(x + FF(x))

The computation and initialisation are those of `nn.TransformerEncoderLayer` (norms after the residuals, ReLU, no
dropout). For rows that see no token, the attention output is 0; PyTorch's layer returns NaN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import KeysAndValues, check_heads
from iclbench.layers.perceptron import perceptron


class EncoderLayer(nn.Module):
    """A post-norm layer. Attention and norms have 4 D² + 8 D parameters, and the feed-forward network has 2 D F + D +
    F.

    Args:
        width: width D of a token.
        heads: number of attention heads.
        feedforward: F, the hidden width of the feed-forward network.

    Raises:
        UsageError: the width is not a multiple of the number of heads.
    """

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        bound = (6 / (4 * width)) ** 0.5  # as in PyTorch, where one matrix with 3 D rows gives queries, keys and values
        for linear in (self.q, self.kv):
            nn.init.uniform_(linear.weight, -bound, bound)
        for linear in (self.q, self.kv, self.out):
            nn.init.zeros_(linear.bias)
        self.norm, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = perceptron(width, feedforward, width)

    def keys(self, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None) -> KeysAndValues:
        """Compute the keys and values of the tokens."""
        k, v = self.kv(tokens).chunk(2, -1)
        return KeysAndValues(self._by_head(k), self._by_head(v), mask)

    def queries(self, rows: Float[Tensor, "B Q D"]) -> Float[Tensor, "B H Q C"]:
        """Compute the queries of the rows."""
        return self._by_head(self.q(rows))

    def attend(
        self,
        rows: Float[Tensor, "B Q D"],
        memory: KeysAndValues,
        visible: Bool[Tensor, "*any Q T"] | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Return the rows after attention to `memory`.

        Args:
            rows: tokens to update.
            memory: keys and values that the rows attend to.
            visible: the tokens of the memory that each row sees; None means all valid tokens.
        """
        if visible is None and memory.mask is not None:
            visible = memory.mask[:, None, None]
        return self.finish(rows, attention(self.queries(rows), memory, visible))

    def finish(self, rows: Float[Tensor, "B Q D"], attended: Float[Tensor, "B H Q C"]) -> Float[Tensor, "B Q D"]:
        """Apply the layers after the heads: projection, feed-forward network, residuals and norms."""
        rows = self.norm(rows + self.out(attended.transpose(1, 2).flatten(2)))
        return self.norm_feed(rows + self.feed(rows))

    def _by_head(self, t: Tensor) -> Tensor:
        """Reshape (B, T, D) to (B, H, T, D / H)."""
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def attention(
    q: Float[Tensor, "B H Q C"], memory: KeysAndValues, visible: Bool[Tensor, "*any Q2 T"] | None
) -> Float[Tensor, "B H Q C"]:
    """Return the outputs of the heads; they are 0 for rows without a visible token."""
    if not memory.keys.shape[2]:
        return torch.zeros_like(q)
    if visible is None:
        return F.scaled_dot_product_attention(q, memory.keys, memory.values)
    has_keys = visible.any(-1, keepdim=True)
    # Rows that see no token attend to all tokens, so that no kernel divides by zero; their output is set to 0 below.
    output = F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=visible | ~has_keys)
    return torch.where(has_keys, output, 0.0)
