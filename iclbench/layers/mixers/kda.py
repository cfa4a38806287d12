"""Kimi delta attention (Kimi Linear, Moonshot AI 2025): gated DeltaNet with a decay per row of the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer, delta_rule
from iclbench.layers.mixers.mixer import Sizes, divided, heads, joined, shrunk, values
from iclbench.layers.mixers.step_sizes import first_dt
from iclbench.layers.mixers.window import Window


class KDA(LinearMixer):
    """S_t = (I - beta_t k_t k_t^T) diag(e^g_t) S_{t-1} + beta_t k_t v_t^T, o = S^T q / sqrt(K), g = -A softplus(W2 W1 x
    + b) per row; q and k of length 1 after a convolution of 4 with SiLU, v after one; each head's answer through an RMS
    norm, then a sigmoid gate of low rank.

    4 D² + 4 D r + D H + 12 D parameters and a few per channel; both low-rank maps have rank r = D / H, the width of a
    head, and no bias (as in transformers' Kimi-Linear). A ~ U(1, 16), dt_bias as in Mamba-2; other layers as PyTorch
    draws them, outputs shrunk with depth.
    """

    uses = frozenset({"heads", "inner", "state", "conv", "rank"})
    default_conv = 4

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, divided(sizes)
        keys, value, rank = sizes.state or per_head, values(sizes, per_head), sizes.rank or per_head
        self.parts = [sizes.heads * keys, sizes.heads * keys, sizes.heads * value]
        super().__init__(Window(sum(self.parts), self.taps(sizes)), (sizes.heads, keys, value))
        self.heads, self.rest = sizes.heads, [rank, rank, sizes.heads]
        self.in_proj = nn.Linear(width, sum(self.parts) + sum(self.rest), bias=False)
        self.decay_proj = nn.Linear(rank, sizes.heads * keys, bias=False)
        self.gate_proj = nn.Linear(rank, sizes.heads * value, bias=False)
        self.A_log = nn.Parameter(torch.empty(sizes.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(first_dt(sizes.heads * keys))
        self.norm = nn.RMSNorm(value, eps=1e-5)
        self.out_proj = shrunk(nn.Linear(sizes.heads * value, width, bias=False), sizes)

    def terms(self, u: Tensor, rest: Tensor) -> Terms:
        q, k, v = (heads(t, self.heads) for t in F.silu(u).split(self.parts, -1))
        low, _, beta = rest.split(self.rest, -1)
        dt = F.softplus(self.decay_proj(low) + self.dt_bias)
        decay = -self.A_log.exp()[:, None, None] * heads(dt, self.heads)
        return delta_rule(q, k, v, beta, decay)

    def out(self, o: Tensor, terms: Terms, u: Tensor, rest: Tensor) -> Tensor:
        gate = self.gate_proj(rest.split(self.rest, -1)[1])
        return self.out_proj(joined(self.norm(o)) * gate.sigmoid())
