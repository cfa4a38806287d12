"""The layer of the Transformer Hawkes process: attention and a feed-forward network, with a norm after each residual
connection.

    x <- LN(x + Attention(x))        x <- LN(x + FF(x))

It is `torch.nn.TransformerEncoderLayer` with GELU, except that the projections to queries, keys and values have no
bias. The caller determines which tokens attend to which.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import check_heads

# Epsilon of the norms, as in the released code.
_EPS = 1e-6


class PostNormLayer(nn.Module):
    """One layer. Attention and its norm have 4 D² + 3 D parameters, and the feed-forward network and its norm have 2 D
    F + 3 D + F.

    Args:
        width: width D of a token.
        heads: number of attention heads.
        feedforward: F, the hidden width of the feed-forward network.
        dropout: dropout rate in training, for attention weights, outputs of both sub-layers and hidden units.

    Raises:
        UsageError: the width is not a multiple of the number of heads.
    """

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        for linear in (self.q, self.k, self.v, self.out):
            nn.init.xavier_uniform_(linear.weight)
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.up, self.down = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.norm_feed = nn.LayerNorm(width, eps=_EPS)
        self.dropout = nn.Dropout(dropout)

    def project(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values by head, `(B, H, T, D/H)` each."""
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        return q, k, v

    def finish(
        self,
        x: Float[Tensor, "B T D"],
        q: Float[Tensor, "B H T C"],
        k: Float[Tensor, "B H S C"],
        v: Float[Tensor, "B H S C"],
        visible: Bool[Tensor, "*any T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the tokens after attention and the feed-forward network.

        Args:
            x: the tokens.
            q: queries of the tokens.
            k, v: keys and values of the tokens that `x` may attend to, including `x`.
            visible: the keys that each token sees; None means causal attention in a complete sequence.
        """
        rate = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=rate, is_causal=visible is None)
        x = self.norm(x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2))))
        hidden = self.dropout(F.gelu(self.up(x)))
        return self.norm_feed(x + self.dropout(self.down(hidden)))
