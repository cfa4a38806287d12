"""Linear attention (Katharopoulos et al. 2020, equations 16 to 20)."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import (
    Mlp,
    Sizes,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    value_channels,
)
from iclbench.layers.mixers.window import Window

# Lower bound of the divisor, which is 0 before any token.
_EPS = 1e-12


class LinearAttention(LinearMixer):
    """S_t = S_{t-1} + phi(k_t) [v_t, 1]^T; o = S^T phi(q), divided by its last entry; phi = elu + 1.

    The mixer has 4 D² parameters. Linear layers use PyTorch's default initialisation; output weights are scaled down
    with depth. An optional convolution is followed by SiLU.
    """

    mlp: ClassVar[Mlp] = "gelu"

    def __init__(self, sizes: Sizes) -> None:
        width, channels_per_head = sizes.width, head_channels(sizes)
        self.heads, self.key_dim, value_dim = (
            sizes.heads,
            sizes.state or self.default_key_dim(channels_per_head),
            value_channels(sizes, channels_per_head),
        )
        qkv_sizes = [sizes.heads * self.key_dim, sizes.heads * self.key_dim, sizes.heads * value_dim]
        super().__init__(
            Window(sum(qkv_sizes), self.taps(sizes)), (sizes.heads, self.feature_count(self.key_dim), value_dim + 1)
        )
        self.qkv_sizes = qkv_sizes
        self.in_proj = nn.Linear(width, sum(qkv_sizes), bias=False)
        self.out_proj = scale_by_depth(nn.Linear(sizes.heads * value_dim, width, bias=False), sizes)

    @staticmethod
    def default_key_dim(channels: int) -> int:
        """Return the default number of channels of a head's keys, given the number of channels per head of the
        model."""
        return channels

    @staticmethod
    def feature_count(key_dim: int) -> int:
        """Return the number of features of keys with this many channels."""
        return key_dim

    def feature(self, x: Tensor) -> Tensor:
        """Return the positive features phi(x)."""
        return F.elu(x) + 1

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = self.read(u)
        return Terms(self.feature(q), self.feature(k), v)

    def read(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and [v, 1] of each head."""
        q, k, v = (split_heads(t, self.heads) for t in self.window.activate(u).split(self.qkv_sizes, -1))
        return q, k, F.pad(v, (0, 1), value=1.0)

    def out(self, o: Tensor, terms: Terms | None, u: Tensor, bypass: Tensor) -> Tensor:
        return self.out_proj(join_heads(o[..., :-1] / o[..., -1:].clamp(min=_EPS)))
