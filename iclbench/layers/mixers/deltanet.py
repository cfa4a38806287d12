"""DeltaNet (Schlag et al. 2021; Yang et al. 2024): the delta rule, one step of gradient descent per token."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer, delta_rule
from iclbench.layers.mixers.mixer import Sizes, divided, heads, joined, shrunk, values
from iclbench.layers.mixers.window import Window


class DeltaNet(LinearMixer):
    """S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o = S^T q / sqrt(K), beta = sigmoid; q and k of length 1
    after a convolution of 4 with SiLU, v after one; each head's answer through an RMS norm.

    4 D² + D H + 12 D parameters, and a norm weight per channel of a head. PyTorch's initialisation of linear layers,
    outputs shrunk with depth.
    """

    default_conv = 4

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, divided(sizes)
        keys, value = sizes.state or per_head, values(sizes, per_head)
        self.parts = [sizes.heads * keys, sizes.heads * keys, sizes.heads * value]
        super().__init__(Window(sum(self.parts), self.taps(sizes)), (sizes.heads, keys, value))
        self.heads = sizes.heads
        self.in_proj = nn.Linear(width, sum(self.parts) + sizes.heads, bias=False)
        self.norm = nn.RMSNorm(value, eps=1e-5)
        self.out_proj = shrunk(nn.Linear(sizes.heads * value, width, bias=False), sizes)

    def terms(self, u: Tensor, rest: Tensor) -> Terms:
        q, k, v = (heads(t, self.heads) for t in F.silu(u).split(self.parts, -1))
        return delta_rule(q, k, v, rest)

    def out(self, o: Tensor, terms: Terms, u: Tensor, rest: Tensor) -> Tensor:
        return self.out_proj(joined(self.norm(o)))
