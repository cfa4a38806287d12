"""Gated DeltaNet (Yang, Kautz and Hatamizadeh 2025): the delta rule on a state that decays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer, delta_rule
from iclbench.layers.mixers.mixer import Sizes, gated, heads, joined, shrunk, values
from iclbench.layers.mixers.step_sizes import first_dt
from iclbench.layers.mixers.window import Window


class GatedDeltaNet(LinearMixer):
    """S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o = S^T q / sqrt(K), alpha = e^(-A softplus(.))
    per head; q and k of length 1 after a convolution of 4 with SiLU, v after one; each head's answer through an RMS
    norm, then a SiLU gate.

    About 6 D²: heads of K = 0.75 D / H channels, rounded down, values twice as wide. A is drawn from U(1, 16), where
    flash-linear-attention has U(0, 16), whose logarithm may be that of 0; dt_bias as in Mamba-2 (first softplus
    log-uniform in [0.001, 0.1]). Other layers as PyTorch draws them, outputs shrunk with depth.
    """

    default_conv = 4

    def __init__(self, sizes: Sizes) -> None:
        width = sizes.width
        key_size = max(1, 3 * width // (4 * sizes.heads))
        keys, value = sizes.state or key_size, values(sizes, 2 * key_size)
        self.parts = [sizes.heads * keys, sizes.heads * keys, sizes.heads * value]
        super().__init__(Window(sum(self.parts), self.taps(sizes)), (sizes.heads, keys, value))
        self.heads = sizes.heads
        self.rest = [sizes.heads * value, sizes.heads, sizes.heads]
        self.in_proj = nn.Linear(width, sum(self.parts) + sum(self.rest), bias=False)
        self.A_log = nn.Parameter(torch.empty(sizes.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(first_dt(sizes.heads))
        self.norm = nn.RMSNorm(value, eps=1e-6)
        self.out_proj = shrunk(nn.Linear(sizes.heads * value, width, bias=False), sizes)

    def terms(self, u: Tensor, rest: Tensor) -> Terms:
        q, k, v = (heads(t, self.heads) for t in F.silu(u).split(self.parts, -1))
        _, beta, dt = rest.split(self.rest, -1)
        decay = (-self.A_log.exp() * F.softplus(dt + self.dt_bias)).mT.unsqueeze(-1)
        return delta_rule(q, k, v, beta, decay)

    def out(self, o: Tensor, terms: Terms, u: Tensor, rest: Tensor) -> Tensor:
        return self.out_proj(gated(joined(self.norm(o)), rest[..., : self.rest[0]]))
