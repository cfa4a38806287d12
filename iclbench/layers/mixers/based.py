"""Based's linear attention (Arora et al. 2024): features whose products are the second-order Taylor series of exp."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from iclbench.layers.mixers.linear_attention import LinearAttention
from iclbench.layers.mixers.mixer import Mlp, Sizes, in_full


class Based(LinearAttention):
    """Linear attention with phi(x) = [1, x / f^(1/4), x (x) x / sqrt(2 f)], so that phi(q).phi(k) = 1 + s + s² / 2 with
    s = q.k / sqrt(f); f = 16 channels per head.

    Of the products x_i x_j those with i > j are left out and those with i < j weigh sqrt(2) as much, which is the same
    phi(q).phi(k) in (f + 1)(f + 2) / 2 rows of state instead of 1 + f + f². 2 D f H + 2 D² parameters. Of the
    published hybrid this is the linear layer; its other layers, attention in a sliding window (of 64 in the paper) and
    a gated convolution, are not part of it. `state` is f.
    """

    mlp: ClassVar[Mlp] = "swiglu"
    first: Tensor
    second: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        # Features are products of two entries of z = [1, x / f^(1/4)]; one-hot products pick them faster than indices.
        i, j = torch.triu_indices(self.keys + 1, self.keys + 1)
        weights = torch.where(i == j, 0.5, 1.0)  # squared, which every precision holds
        weights[0] = 1.0
        entries = torch.eye(self.keys + 1)
        self.register_buffer("first", entries[:, i], persistent=False)
        self.register_buffer("second", entries[:, j] * weights, persistent=False)

    @staticmethod
    def default_keys(channels: int) -> int:
        return 16

    @staticmethod
    def rows(keys: int) -> int:
        return (keys + 1) * (keys + 2) // 2

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Of fewer tokens than rows the scores are cheaper than the features, whose products they are."""
        if x.shape[1] > self.kept[1]:
            return super().full_pass(x)
        inputs, rest = self.channels(x)
        u, _ = self.window(inputs, self.window.start(len(x), self._weight))
        with in_full(x):
            q, k, v = self.read(u.to(self._weight))
            s = q @ k.mT * k.shape[-1] ** -0.5
            o = (1 + s + 0.5 * s.square()).tril() @ v
        return self.out(o, None, u, rest)

    def feature(self, x: Tensor) -> Tensor:
        z = F.pad(x / x.shape[-1] ** 0.25, (1, 0), value=1.0)
        return (z @ self.first) * (z @ self.second.sqrt())
