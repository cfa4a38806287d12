"""Based's linear attention (Arora et al. 2024): features whose products are the second-order Taylor series of exp."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from iclbench.layers.mixers.linear_attention import LinearAttention
from iclbench.layers.mixers.mixer import Mlp


class Based(LinearAttention):
    """Linear attention with phi(x) = [1, x / f^(1/4), x (x) x / sqrt(2 f)], so that phi(q).phi(k) = 1 + s + s² / 2 with
    s = q.k / sqrt(f); f = 16 channels per head and 1 + f + f² rows of state.

    2 D f H + 2 D² parameters. Of the published hybrid this is the linear layer; its other layers, attention in a
    sliding window of 64 and a gated convolution, are not part of it. `state` is f.
    """

    mlp: ClassVar[Mlp] = "swiglu"

    @staticmethod
    def own_keys(value: int) -> int:
        return 16

    @staticmethod
    def rows(keys: int) -> int:
        return 1 + keys + keys * keys

    @staticmethod
    def feature(x: Tensor) -> Tensor:
        size = x.shape[-1]
        squares = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) / math.sqrt(2 * size)
        return torch.cat([torch.ones_like(x[..., :1]), x / size**0.25, squares], -1)
