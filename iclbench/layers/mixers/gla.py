"""Gated linear attention (Yang et al. 2024)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import Sizes, divided, gated, heads, joined, shrunk, values
from iclbench.layers.mixers.window import Window

_RANK, _TEMPERATURE = 16, 16.0


class GLA(LinearMixer):
    """S_t = diag(alpha_t) S_{t-1} + k_t v_t^T, o = S^T q / sqrt(K), alpha = sigmoid(W2 W1 x + b)^(1/16) per row of the
    state; keys half as wide as values; each head's answer through an RMS norm, all through a SiLU gate.

    4 D² + 24.5 D parameters with a gate of rank 16, and a norm weight per channel of a head. PyTorch's initialisation
    of linear layers, outputs shrunk with depth. No convolution; one that is asked for is followed by SiLU.
    """

    uses = frozenset({"heads", "inner", "state", "conv", "rank"})

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, divided(sizes)
        keys, value, rank = sizes.state or max(1, per_head // 2), values(sizes, per_head), sizes.rank or _RANK
        inner = sizes.heads * value
        self.parts = [sizes.heads * keys, sizes.heads * keys, inner]
        super().__init__(Window(sum(self.parts), self.taps(sizes)), (sizes.heads, keys, value))
        self.heads, self.keys = sizes.heads, keys
        self.in_proj = nn.Linear(width, sum(self.parts) + inner + rank, bias=False)
        self.rest = [inner, rank]
        self.decay_proj = nn.Linear(rank, sizes.heads * keys)
        self.norm = nn.RMSNorm(value, eps=1e-5)
        self.out_proj = shrunk(nn.Linear(inner, width, bias=False), sizes)

    def terms(self, u: Tensor, rest: Tensor) -> Terms:
        q, k, v = (heads(t, self.heads) for t in self.window.activated(u).split(self.parts, -1))
        decay = F.logsigmoid(self.decay_proj(rest[..., self.rest[0] :])) / _TEMPERATURE
        return Terms(q * self.keys**-0.5, k, v, heads(decay, self.heads))

    def out(self, o: Tensor, terms: Terms, u: Tensor, rest: Tensor) -> Tensor:
        return self.out_proj(gated(joined(self.norm(o)), rest[..., : self.rest[0]]))
