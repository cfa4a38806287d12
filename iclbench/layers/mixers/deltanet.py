"""DeltaNet (Schlag et al. 2021; Yang et al. 2024): the delta rule, one step of gradient descent per token."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer, delta_rule
from iclbench.layers.mixers.mixer import Sizes, head_channels, join_heads, scale_by_depth, split_heads, value_channels
from iclbench.layers.mixers.window import Window


class DeltaNet(LinearMixer):
    """S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o = S^T q / sqrt(K), beta = sigmoid(.); with the setting
    `eigenvalues=negative`, beta = 2 sigmoid(.).

    A convolution of 4 taps with SiLU is applied to q, k and v; then q and k are scaled to length 1. RMSNorm is
    applied to the output of each head. The mixer has 4 D² + D H + 12 D parameters, plus a norm weight per channel of a
    head. Linear layers use PyTorch's default initialisation; output weights are scaled down with depth.
    """

    uses = frozenset({"heads", "inner", "state", "conv", "eigenvalues"})
    default_conv = 4

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, head_channels(sizes)
        key_dim, value_dim = sizes.state or per_head, value_channels(sizes, per_head)
        self.qkv_sizes = [sizes.heads * key_dim, sizes.heads * key_dim, sizes.heads * value_dim]
        super().__init__(Window(sum(self.qkv_sizes), self.taps(sizes)), (sizes.heads, key_dim, value_dim))
        self.heads, self.eigenvalues = sizes.heads, sizes.eigenvalues
        self.in_proj = nn.Linear(width, sum(self.qkv_sizes) + sizes.heads, bias=False)
        self.norm = nn.RMSNorm(value_dim, eps=1e-5)
        self.out_proj = scale_by_depth(nn.Linear(sizes.heads * value_dim, width, bias=False), sizes)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in F.silu(u).split(self.qkv_sizes, -1))
        return delta_rule(q, k, v, beta_logits=bypass, eigenvalues=self.eigenvalues)

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        return self.out_proj(join_heads(self.norm(o)))
