"""The attention layer of attentive neural processes in the releases of BNP (Lee et al. 2020) and TNP (Nguyen and Grover
2022): post-norm, with a residual connection from the projected query.

    h = LN(W q + attention(W q, K k, V v));    h <- LN(h + relu(O h + b))

As in the released code, scores are divided by sqrt(D), where D is the width of the layer and not the width of a head.
Without valid keys, the attention output is 0.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import KeysAndValues, check_heads


class ProjectedAttention(nn.Module):
    """Attention with projected keys and values; 4 D² + 5 D parameters.

    Args:
        width: width D of a token.
        heads: number of attention heads.

    Raises:
        UsageError: the width is not a multiple of the number of heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)

    def keys(
        self, keys: Float[Tensor, "B T D"], values: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None
    ) -> KeysAndValues:
        """Project the keys and values of tokens; the tokens in `mask` are valid."""
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.k(keys), self.v(values)))
        return KeysAndValues(k, v, mask)

    def attend(self, queries: Float[Tensor, "B Q D"], memory: KeysAndValues) -> Float[Tensor, "B Q D"]:
        """Return the queries after attention to `memory`."""
        hidden = q = self.q(queries)
        if memory.keys.shape[2]:
            by_head = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            hidden = q + self._attention(by_head, memory).transpose(1, 2).flatten(2)
        hidden = self.norm(hidden)
        return self.norm_out(hidden + F.relu(self.out(hidden)))

    def forward(
        self, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Return the tokens after self-attention."""
        return self.attend(tokens, self.keys(tokens, tokens, mask))

    def _attention(self, q: Float[Tensor, "B H Q C"], memory: KeysAndValues) -> Float[Tensor, "B H Q C"]:
        visible, has_keys = None, None
        if memory.mask is not None:
            has_keys = memory.mask.any(1)[:, None, None]
            # Episodes without valid keys attend to all keys, so that no kernel divides by zero. Their output is set to
            # 0 below.
            visible = (memory.mask[:, None] | ~has_keys).unsqueeze(1)
        scale = (q.shape[1] * q.shape[3]) ** -0.5
        output = F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=visible, scale=scale)
        return output if has_keys is None else output * has_keys.unsqueeze(1)
