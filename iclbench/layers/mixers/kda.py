"""Kimi delta attention (Kimi Linear, Moonshot AI 2025): gated DeltaNet with one decay per row of the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer, delta_rule
from iclbench.layers.mixers.mixer import Sizes, head_channels, join_heads, scale_by_depth, split_heads, value_channels
from iclbench.layers.mixers.step_sizes import initial_dt_bias
from iclbench.layers.mixers.window import Window


class KDA(LinearMixer):
    """S_t = (I - beta_t k_t k_t^T) diag(e^g_t) S_{t-1} + beta_t k_t v_t^T, o = S^T q / sqrt(K), g = -A softplus(W2 W1 x
    + b) per row, beta = sigmoid(.); with the setting `eigenvalues=negative`, beta = 2 sigmoid(.).

    A convolution of 4 taps with SiLU is applied to q, k and v; then q and k are scaled to length 1. RMSNorm and a
    low-rank sigmoid gate are applied to the output of each head. The mixer has 4 D² + 4 D r + D H + 12 D parameters,
    plus those of A (H), dt_bias (D) and the norm (D / H). Both low-rank maps have rank r = D / H, the width of a head,
    and no bias (as in transformers' Kimi-Linear). A is drawn from U(1, 16), and dt_bias is initialised as in Mamba-2.
    Other layers use PyTorch's default initialisation; output weights are scaled down with depth.
    """

    uses = frozenset({"heads", "inner", "state", "conv", "rank", "eigenvalues"})
    default_conv = 4

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, head_channels(sizes)
        key_dim, value_dim, rank = sizes.state or per_head, value_channels(sizes, per_head), sizes.rank or per_head
        self.qkv_sizes = [sizes.heads * key_dim, sizes.heads * key_dim, sizes.heads * value_dim]
        super().__init__(Window(sum(self.qkv_sizes), self.taps(sizes)), (sizes.heads, key_dim, value_dim))
        self.heads, self.eigenvalues = sizes.heads, sizes.eigenvalues
        self.bypass_sizes = [rank, rank, sizes.heads]
        self.in_proj = nn.Linear(width, sum(self.qkv_sizes) + sum(self.bypass_sizes), bias=False)
        self.decay_proj = nn.Linear(rank, sizes.heads * key_dim, bias=False)
        self.gate_proj = nn.Linear(rank, sizes.heads * value_dim, bias=False)
        self.A_log = nn.Parameter(torch.empty(sizes.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(initial_dt_bias(sizes.heads * key_dim))
        self.norm = nn.RMSNorm(value_dim, eps=1e-5)
        self.out_proj = scale_by_depth(nn.Linear(sizes.heads * value_dim, width, bias=False), sizes)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in F.silu(u).split(self.qkv_sizes, -1))
        low, _, beta_logits = bypass.split(self.bypass_sizes, -1)
        dt = F.softplus(self.decay_proj(low) + self.dt_bias)
        decay = -self.A_log.exp()[:, None, None] * split_heads(dt, self.heads)
        return delta_rule(q, k, v, beta_logits, decay, self.eigenvalues)

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        gate = self.gate_proj(bypass.split(self.bypass_sizes, -1)[1])
        return self.out_proj(join_heads(self.norm(o)) * gate.sigmoid())
