"""Causal softmax attention (Vaswani et al. 2017), without positions."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.key_value_cache import attend_past_and_self, valid_causal_mask
from iclbench.layers.mixers.mixer import (
    Mixer,
    MixerState,
    Mlp,
    Sizes,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    value_channels,
    zero_invalid,
)
from iclbench.layers.mixers.window import Window


class Attention(Mixer):
    """softmax(q K^T / sqrt(C)) V over the tokens so far, with C channels per head.

    The mixer is GPT-2's attention layer, with 4 D² + 4 D parameters. The state holds all keys and values, and the mask
    of valid tokens. Linear layers use PyTorch's default initialisation; output weights are scaled down with depth. An
    optional convolution is applied to q, k and v, without an activation.
    """

    uses = frozenset({"heads", "inner", "conv"})
    mlp: ClassVar[Mlp] = "gelu"
    state_grows = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.inner = sizes.heads, sizes.heads * value_channels(sizes, head_channels(sizes))
        self.in_proj = nn.Linear(sizes.width, 3 * self.inner)
        self.window = Window(3 * self.inner, self.taps(sizes))
        self.out_proj = scale_by_depth(nn.Linear(self.inner, sizes.width), sizes)

    def start(self, batch: int) -> MixerState:
        weight = self.out_proj.weight
        empty = weight.new_zeros(batch, 0, self.inner)
        return self.window.start(batch, weight), empty, empty, torch.zeros_like(empty[..., 0], dtype=torch.bool)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, *cache = state
        u, tail = self.window(zero_invalid(self.in_proj(x), mask), tail)
        q, keys, values, valid = self._extend(u, cache, mask)
        visible = None
        if keys.shape[2] > x.shape[1] or mask is not None:
            visible = valid_causal_mask(valid, x.shape[1])
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, is_causal=visible is None)
        return self.out_proj(join_heads(mixed)), (tail, join_heads(keys), join_heads(values), valid)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, keys, values, valid = state
        q, k, v = self._by_head(self.window.peek(self.in_proj(x), tail))
        visible = valid[:, None, None].expand(-1, 1, x.shape[1], -1)
        keys, values = (split_heads(t.to(k), self.heads) for t in (keys, values))
        return self.out_proj(join_heads(attend_past_and_self(q, keys, values, visible, k, v)))

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        tail, *cache = state
        inputs, query_inputs = self.in_proj(x), self.in_proj(queries)
        u, query_u, tail = self.window.fork(inputs, query_inputs, tail)
        q_query, k_query, v_query = self._by_head(query_u)
        q, keys, values, valid = self._extend(u, cache, None)
        visible, past = valid_causal_mask(valid, x.shape[1]), keys.shape[2] - x.shape[1]
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible)
        answers = attend_past_and_self(q_query, keys, values, visible.tril(past - 1)[..., ::2, :], k_query, v_query)
        outputs = self.out_proj(join_heads(mixed)), self.out_proj(join_heads(answers))
        return *outputs, (tail, join_heads(keys), join_heads(values), valid)

    def _extend(
        self, u: Tensor, cache: list[Tensor], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Tensor, Tensor, Tensor, Bool[Tensor, "B T"]]:
        """Return the queries, all keys and all values by head, and the mask of valid tokens."""
        keys, values, valid = cache
        q, k, v = self._by_head(u)
        new_valid = valid.new_ones(u.shape[:2]) if mask is None else mask
        k, v = (torch.cat([split_heads(old.to(t), self.heads), t], 2) for old, t in ((keys, k), (values, v)))
        return q, k, v, torch.cat([valid, new_valid], 1)

    def _by_head(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split_heads(t, self.heads) for t in u.chunk(3, -1))
        return q, k, v
