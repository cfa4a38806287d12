"""Gated DeltaNet (Yang, Kautz and Hatamizadeh 2025): the delta rule on a state that decays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer, delta_rule
from iclbench.layers.mixers.mixer import Sizes, apply_silu_gate, join_heads, scale_by_depth, split_heads, value_channels
from iclbench.layers.mixers.step_sizes import initial_dt_bias
from iclbench.layers.mixers.window import Window


class GatedDeltaNet(LinearMixer):
    """S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o = S^T q / sqrt(K), alpha = e^(-A softplus(.))
    per head, beta = sigmoid(.); with the setting `eigenvalues=negative`, beta = 2 sigmoid(.).

    A convolution with 4 taps and SiLU is applied to q, k and v; then q and k are scaled to length 1. RMSNorm and a
    SiLU gate are applied to the output of each head. The mixer has about 6 D² parameters: keys have K = 0.75 D / H
    channels per head, rounded down, and values are twice as wide. A is drawn from U(1, 16); flash-linear-attention uses
    U(0, 16), which includes 0, whose logarithm is infinite. dt_bias is initialised as in Mamba-2 (its softplus is
    log-uniform in [0.001, 0.1]). Other layers use PyTorch's default initialisation; output weights are scaled down with
    depth.
    """

    uses = frozenset({"heads", "inner", "state", "conv", "eigenvalues"})
    default_conv = 4

    def __init__(self, sizes: Sizes, steps: int = 1) -> None:
        width = sizes.width
        key_size = max(1, 3 * width // (4 * sizes.heads))
        key_dim, value_dim = sizes.state or key_size, value_channels(sizes, 2 * key_size)
        self.qkv_sizes = [sizes.heads * key_dim, steps * sizes.heads * key_dim, steps * sizes.heads * value_dim]
        super().__init__(Window(sum(self.qkv_sizes), self.taps(sizes)), (sizes.heads, key_dim, value_dim), steps)
        self.heads, self.eigenvalues = sizes.heads, sizes.eigenvalues
        # Channels that bypass the convolution: the gate, beta and dt.
        self.bypass_sizes = [sizes.heads * value_dim, steps * sizes.heads, sizes.heads]
        self.in_proj = nn.Linear(width, sum(self.qkv_sizes) + sum(self.bypass_sizes), bias=False)
        self.A_log = nn.Parameter(torch.empty(sizes.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(initial_dt_bias(sizes.heads))
        self.norm = nn.RMSNorm(value_dim, eps=1e-6)
        self.out_proj = scale_by_depth(nn.Linear(sizes.heads * value_dim, width, bias=False), sizes)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in F.silu(u).split(self.qkv_sizes, -1))
        _, beta_logits, dt = bypass.split(self.bypass_sizes, -1)
        decay = self.decays(dt).mT.unsqueeze(-1)
        return delta_rule(q, k, v, beta_logits, decay, self.eigenvalues)

    def decays(self, dt: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
        """Return the log decays of the heads."""
        return -self.A_log.exp() * F.softplus(dt + self.dt_bias)

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        return self.out_proj(apply_silu_gate(join_heads(self.norm(o)), bypass[..., : self.bypass_sizes[0]]))
