"""Retention (Sun et al. 2023): linear attention with a fixed decay per head and rotary queries and keys."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.core.errors import UsageError
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
from iclbench.layers.positions import ROTARY_BASE, rotate


class RetNet(LinearMixer):
    """S_t = gamma_h S_{t-1} + k_t v_t^T, o = S^T q, gamma_h = 1 - 2^(-5-h).

    q and k are rotated by their positions, and k is divided by sqrt(K). Values are twice as wide as tokens. RMSNorm
    is applied to the output of each head, and a SiLU gate to the outputs of all heads. The mixer has 8 D² parameters.

    The state is rotated with every token, so that positions are relative to the state and do not grow. RMSNorm has no
    weights, as in torchscale's code; the paper has a group norm. The frequencies are those of rotary positions,
    base^(-2i/K); in torchscale's code, the exponents run from 0 to -1 inclusive. Linear layers use PyTorch's default
    initialisation; output weights are scaled down with depth. Torchscale instead uses Xavier initialisation with small
    gains, and multiplies scores by factors that the norm cancels. An optional convolution is followed by SiLU.
    """

    head_step = 2  # pairs of channels of queries and keys are rotated

    def __init__(self, sizes: Sizes) -> None:
        width, key_dim = sizes.width, sizes.state or head_channels(sizes)
        if key_dim % 2:
            raise UsageError(
                "retnet rotates pairs of channels: backbone.state, or backbone.width / backbone.heads, must be even, "
                f"not {key_dim}",
                code="bad-value",
            )
        value_dim = value_channels(sizes, head_channels(sizes, 2))
        inner = sizes.heads * value_dim
        self.qkv_sizes = [sizes.heads * key_dim, sizes.heads * key_dim, inner]
        super().__init__(Window(sum(self.qkv_sizes), self.taps(sizes)), (sizes.heads, key_dim, value_dim))
        self.heads, self.key_dim = sizes.heads, key_dim
        self.in_proj = nn.Linear(width, sum(self.qkv_sizes) + inner, bias=False)
        self.out_proj = scale_by_depth(nn.Linear(inner, width, bias=False), sizes)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in self.window.activate(u).split(self.qkv_sizes, -1))
        decays = torch.log1p(-torch.exp2(-5.0 - torch.arange(self.heads, dtype=v.dtype, device=v.device)))
        return Terms(q, k * self.key_dim**-0.5, v, decays[:, None, None].expand(len(v), -1, v.shape[2], 1))

    def at_positions(self, terms: Terms, positions: range) -> Terms:
        return replace(terms, q=self._rotate(terms.q, positions), k=self._rotate(terms.k, positions))

    def advance_origin(self, state: Tensor, tokens: int) -> Tensor:
        return self._rotate(state.mT, range(-tokens, 1 - tokens)).mT

    def _rotate(self, t: Tensor, positions: range) -> Tensor:
        """Rotate by angles proportional to the positions, in the precision of t."""
        frequencies = ROTARY_BASE ** -(torch.arange(0, self.key_dim, 2, dtype=t.dtype, device=t.device) / self.key_dim)
        index = torch.arange(positions.start, positions.stop, positions.step, dtype=t.dtype, device=t.device)
        angles = index.unsqueeze(1) * frequencies
        return rotate(t, (angles.cos(), angles.sin()))

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        return self.out_proj(apply_silu_gate(join_heads(F.rms_norm(o, o.shape[-1:], eps=1e-6)), bypass))
