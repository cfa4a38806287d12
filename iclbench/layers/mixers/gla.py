"""Gated linear attention (Yang et al. 2024)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import (
    Sizes,
    apply_silu_gate,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    value_channels,
)
from iclbench.layers.mixers.window import Window

_RANK, _TEMPERATURE = 16, 16.0


class GLA(LinearMixer):
    """S_t = diag(alpha_t) S_{t-1} + k_t v_t^T, o = S^T q / sqrt(K), alpha = sigmoid(W2 W1 x + b)^(1/16) per row of the
    state.

    Keys are half as wide as values. RMSNorm is applied to the output of each head, and a SiLU gate to the outputs of
    all heads. With decays of rank 16, the mixer has 4 D² + 24.5 D parameters, plus a norm weight per channel of a head.
    Linear layers use PyTorch's default initialisation; output weights are scaled down with depth. By default the mixer
    has no convolution; an optional convolution is followed by SiLU.
    """

    uses = frozenset({"heads", "inner", "state", "conv", "rank"})

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, head_channels(sizes)
        key_dim, value_dim, rank = (
            sizes.state or max(1, per_head // 2),
            value_channels(sizes, per_head),
            sizes.rank or _RANK,
        )
        inner = sizes.heads * value_dim
        self.qkv_sizes = [sizes.heads * key_dim, sizes.heads * key_dim, inner]
        super().__init__(Window(sum(self.qkv_sizes), self.taps(sizes)), (sizes.heads, key_dim, value_dim))
        self.heads, self.key_dim = sizes.heads, key_dim
        self.in_proj = nn.Linear(width, sum(self.qkv_sizes) + inner + rank, bias=False)
        self.bypass_sizes = [inner, rank]
        self.decay_proj = nn.Linear(rank, sizes.heads * key_dim)
        self.norm = nn.RMSNorm(value_dim, eps=1e-5)
        self.out_proj = scale_by_depth(nn.Linear(inner, width, bias=False), sizes)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in self.window.activate(u).split(self.qkv_sizes, -1))
        decay = F.logsigmoid(self.decay_proj(bypass[..., self.bypass_sizes[0] :])) / _TEMPERATURE
        return Terms(q * self.key_dim**-0.5, k, v, split_heads(decay, self.heads))

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        return self.out_proj(apply_silu_gate(join_heads(self.norm(o)), bypass[..., : self.bypass_sizes[0]]))
