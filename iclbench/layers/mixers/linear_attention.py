"""Linear attention (Katharopoulos et al. 2020, equations 16 to 20)."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import Mlp, Sizes, divided, heads, joined, shrunk, values
from iclbench.layers.mixers.window import Window

# Below it a sum of positive features is that of no token.
_EPS = 1e-12


class LinearAttention(LinearMixer):
    """S_t = S_{t-1} + phi(k_t) [v_t, 1]^T; o = S^T phi(q), divided by its last entry; phi = elu + 1.

    4 D² parameters. PyTorch's initialisation of linear layers, outputs shrunk with depth. A convolution, where one is
    asked for, is followed by SiLU.
    """

    mlp: ClassVar[Mlp] = "gelu"

    def __init__(self, sizes: Sizes) -> None:
        width, per_head = sizes.width, divided(sizes)
        self.heads, self.keys, value = sizes.heads, sizes.state or self.default_keys(per_head), values(sizes, per_head)
        parts = [sizes.heads * self.keys, sizes.heads * self.keys, sizes.heads * value]
        super().__init__(Window(sum(parts), self.taps(sizes)), (sizes.heads, self.rows(self.keys), value + 1))
        self.parts = parts
        self.in_proj = nn.Linear(width, sum(parts), bias=False)
        self.out_proj = shrunk(nn.Linear(sizes.heads * value, width, bias=False), sizes)

    @staticmethod
    def default_keys(channels: int) -> int:
        """Channels of a head's keys: all that a head of the width has."""
        return channels

    @staticmethod
    def rows(keys: int) -> int:
        """Features of so many channels."""
        return keys

    def feature(self, x: Tensor) -> Tensor:
        """phi, positive."""
        return F.elu(x) + 1

    def terms(self, u: Tensor, rest: Tensor) -> Terms:
        q, k, v = self.read(u)
        return Terms(self.feature(q), self.feature(k), v)

    def read(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and [v, 1] of every head."""
        q, k, v = (heads(t, self.heads) for t in self.window.activated(u).split(self.parts, -1))
        return q, k, F.pad(v, (0, 1), value=1.0)

    def out(self, o: Tensor, terms: Terms | None, u: Tensor, rest: Tensor) -> Tensor:
        return self.out_proj(joined(o[..., :-1] / o[..., -1:].clamp(min=_EPS)))
