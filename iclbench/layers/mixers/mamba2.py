"""Mamba-2 (Dao and Gu 2024): state-space duality."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import (
    Mlp,
    Sizes,
    apply_silu_gate,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    value_channels,
)
from iclbench.layers.mixers.step_sizes import initial_dt_bias
from iclbench.layers.mixers.window import Window

_EXPAND, _STATE = 2, 64
_EPS = 1e-5


class Mamba2(LinearMixer):
    """S_t = e^(-A dt_t) S_{t-1} + B_t (dt_t x_t)^T, y = S^T C + D x, then RMSNorm(y SiLU(z)). All heads share B and C.

    Layout, arithmetic and parameter names (except for the convolution) follow the layers of mamba-ssm and transformers
    with one group: inner width E = 2W for tokens of width W, one convolution with SiLU over x, B and C, and dt =
    softplus(.). The initialisation follows mamba-ssm: dt log-uniform in [0.001, 0.1], A uniform in [1, 16], D = 1. The
    mixer has W (2E + 2N + H) + 5 (E + 2N) + 3H + E + E W parameters, with a state of size N = 64 per channel. The
    language models of the paper have N = 128 and heads of 64 channels; here, `heads` sets the number of heads.
    """

    default_conv = 4
    mlp: ClassVar[Mlp] = "none"

    def __init__(self, sizes: Sizes) -> None:
        width, state, value_dim = (
            sizes.width,
            sizes.state or _STATE,
            value_channels(sizes, head_channels(sizes, _EXPAND)),
        )
        inner = sizes.heads * value_dim
        super().__init__(Window(inner + 2 * state, self.taps(sizes), bias=True), (sizes.heads, state, value_dim))
        self.heads, self.state, self.inner = sizes.heads, state, inner
        self.in_proj = nn.Linear(width, 2 * inner + 2 * state + sizes.heads, bias=False)
        self.dt_bias = nn.Parameter(initial_dt_bias(sizes.heads))
        self.A_log = nn.Parameter(torch.empty(sizes.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(sizes.heads))
        self.norm = nn.RMSNorm(inner, eps=_EPS)
        self.out_proj = scale_by_depth(nn.Linear(inner, width, bias=False), sizes)

    def channels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, u, dt = self.in_proj(x).split([self.inner, self.window.channels, self.heads], -1)
        return u, torch.cat([z, dt], -1)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        x, B, C = F.silu(u).split([self.inner, self.state, self.state], -1)
        dt = F.softplus(bypass[..., self.inner :] + self.dt_bias).mT.unsqueeze(-1)
        decay = -self.A_log.exp()[:, None, None] * dt
        return Terms(C.unsqueeze(1), B.unsqueeze(1), split_heads(x, self.heads) * dt, decay)

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        x = split_heads(F.silu(u[..., : self.inner]), self.heads)
        y = join_heads(o + self.D[:, None, None] * x)
        return self.out_proj(self.norm(apply_silu_gate(y, bypass[..., : self.inner])))
