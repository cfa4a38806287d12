"""RWKV-7 (Peng et al. 2025): a generalised delta rule with a decay and a learning rate per channel, and with a separate
key for removal."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import Mlp, Sizes, head_channels, join_heads, split_heads
from iclbench.layers.mixers.window import TokenShift, Window

_DECAY = math.exp(-0.5)  # the strongest decay of a step is e^-0.6065
_SHIFT_POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)  # exponents of the initial token shifts of r, w, k, v, a and g


class RWKV7(LinearMixer):
    """S_t = (diag(e^g_t) - (k^_t a_t) k^_t^T) S_{t-1} + k~_t v_t^T, o = S^T r, with g = -0.6065 sigmoid(w), k^ the unit
    vector along k k_k, a = sigmoid(.) and k~ = k (1 + (a - 1) k_a). The output o passes through a group norm per head
    (eps = 1e-5 V for V channels per head), the bonus (r . k~ r_k) v is added, and a gate and the output projection,
    which starts at 0, are applied.

    The mixer has 4 D² parameters, plus four low-rank maps (for w, a, v and g). Each of r, w, k, v, a and g is computed
    from x + mu (x_before - x), where x_before is the previous token and mu is learned per channel. The setting `conv`
    replaces x_before by the output of a convolution (with `conv=0`, by x itself). Later layers interpolate between
    their values and those of the first layer. Initial values are as published, except that a model with one layer does
    not divide by 0. The published ranks are at least 32; with them, the low-rank maps of a model of width 64 would have
    4 D² parameters. Here, the ranks are 1.8 sqrt(D), 1.8 sqrt(D), 1.3 sqrt(D) and 0.6 D^0.8, rounded up, or all are
    equal to the setting `rank`. The channel MLP is relu², without the published token shift, and has PyTorch's
    initialisation instead of an orthogonal input layer and an output layer of zeros.
    """

    uses = frozenset({"heads", "conv", "rank"})
    mlp: ClassVar[Mlp] = "relu2"
    shares_values = True
    no_conv_text = "the previous token in place of a short convolution"

    def __init__(self, sizes: Sizes) -> None:
        width, value_dim = sizes.width, head_channels(sizes)
        window = TokenShift(width) if sizes.conv is None else Window(width, sizes.conv)
        super().__init__(window, (sizes.heads, value_dim, value_dim))
        self.heads, self.width, self.first = sizes.heads, width, sizes.first
        depth = sizes.layer / max(1, sizes.layers - 1)
        channel = torch.arange(width) / width
        ramp = torch.linspace(-0.5, 0.5, width) if width > 1 else torch.zeros(1)
        head_ramp = torch.linspace(-1, 1, value_dim).repeat(sizes.heads) if value_dim > 1 else torch.zeros(width)
        zigzag = head_ramp * head_ramp.abs()
        remaining_depth = 1 - sizes.layer / sizes.layers
        self.mix = nn.Parameter(torch.stack([1 - channel ** (power * remaining_depth) for power in _SHIFT_POWERS]))
        self.r, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        for linear, gain in ((self.r, 1.0), (self.k, 0.1), (self.v, 1.0)):
            nn.init.orthogonal_(linear.weight, gain)
        rank, gate_rank = math.ceil(1.8 * width**0.5), math.ceil(0.6 * width**0.8)
        decay = -6 + 6 * (ramp + 0.5) ** (1 + depth**0.3)
        self.w = low_rank(width, sizes.rank or rank, decay + 0.5 + 2.5 * zigzag)
        self.a = low_rank(width, sizes.rank or rank, -0.19 + 0.3 * zigzag + 0.4 * ramp)
        self.g = low_rank(width, sizes.rank or gate_rank, None)
        if not self.first:
            self.mixed = low_rank(width, sizes.rank or math.ceil(1.3 * width**0.5), 0.73 - 0.4 * ramp)
        self.k_k, self.k_a = nn.Parameter(0.71 - 0.1 * ramp), nn.Parameter(torch.full((width,), 1.02))
        self.r_k = nn.Parameter(torch.full((sizes.heads, 1, value_dim), -0.04))
        self.norm = nn.GroupNorm(sizes.heads, width, eps=value_dim * 1e-5)
        nn.init.constant_(self.norm.weight, ((sizes.layer + 1) / sizes.layers) ** 0.7)
        self.out_proj = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.out_proj.weight)

    def channels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., : self.width], x

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        xr, xw, xk, xv, xa = (self._interpolate(u, bypass, mu) for mu in self.mix[:-1])
        r, k, v = self.r(xr), self.k(xk), self.v(xv)
        g = -_DECAY * self.w[1](self.w[0](xw).tanh()).sigmoid()
        a = self.a(xa).sigmoid()
        if not self.first:
            v = torch.lerp(v, bypass[..., self.width :], self.mixed(xv).sigmoid())
        removed_key = F.normalize(split_heads(k * self.k_k, self.heads), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, v, g, a = (split_heads(t, self.heads) for t in (r, k, v, g, a))
        return Terms(r, k, v, g, -removed_key, removed_key * a)

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        bonus = (terms.q * terms.k * self.r_k).sum(-1, keepdim=True) * terms.v
        o = join_heads(o)
        normed = self.norm(o.flatten(0, 1)).view_as(o)
        low, high = self.g
        gate = high(low(self._interpolate(u, bypass, self.mix[-1])).sigmoid())
        first_values = join_heads(terms.v) if self.first else bypass[..., self.width :]
        return torch.cat([self.out_proj((normed + join_heads(bonus)) * gate), first_values], -1)

    def _interpolate(self, u: Tensor, bypass: Tensor, mu: Tensor) -> Tensor:
        """Return x + mu (x_before - x)."""
        x = bypass[..., : self.width]
        return x + (u - x) * mu


def low_rank(width: int, rank: int, bias: Tensor | None) -> nn.Sequential:
    """Create two linear layers. The first is initialised with 0; the second is orthogonal with gain 0.1 and may have a
    bias."""
    first, second = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=bias is not None)
    nn.init.zeros_(first.weight)
    nn.init.orthogonal_(second.weight, 0.1)
    if bias is not None:
        second.bias.data.copy_(bias)
    return nn.Sequential(first, second)
