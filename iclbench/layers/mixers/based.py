"""Based's linear attention (Arora et al. 2024), with features whose inner products are the second-order Taylor series
of exp."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from iclbench.layers.mixers.linear_attention import LinearAttention
from iclbench.layers.mixers.mixer import Mlp, Sizes, full_precision


class Based(LinearAttention):
    """Linear attention with phi(x) = [1, x / f^(1/4), x (x) x / sqrt(2 f)], so that phi(q).phi(k) = 1 + s + s² / 2 with
    s = q.k / sqrt(f); f = 16 channels per head.

    The features omit products x_i x_j with i > j and multiply those with i < j by sqrt(2), which gives the same
    phi(q).phi(k) with (f + 1)(f + 2) / 2 rows of state instead of 1 + f + f². The mixer has 2 D f H + 2 D² parameters.
    It is the linear-attention layer of the published hybrid model, without the layers of sliding-window attention (64
    tokens in the paper) and of gated convolution. The setting `state` is f.
    """

    mlp: ClassVar[Mlp] = "swiglu"
    first: Tensor
    second: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        # Features are products of two entries of z = [1, x / f^(1/4)]; one-hot matrices select the entries faster than
        # indices.
        i, j = torch.triu_indices(self.key_dim + 1, self.key_dim + 1)
        weights = torch.where(i == j, 0.5, 1.0)  # squares of the weights, which are exact in every precision
        weights[0] = 1.0
        entries = torch.eye(self.key_dim + 1)
        self.register_buffer("first", entries[:, i], persistent=False)
        self.register_buffer("second", entries[:, j] * weights, persistent=False)

    @staticmethod
    def default_key_dim(channels: int) -> int:
        return 16

    @staticmethod
    def feature_count(key_dim: int) -> int:
        return (key_dim + 1) * (key_dim + 2) // 2

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the outputs for a complete sequence. If it has at most as many tokens as the state has rows, the
        outputs are computed from scores of pairs of tokens, which is faster than computing features."""
        if x.shape[1] > self.state_shape[1]:
            return super().full_pass(x)
        inputs, bypass = self.channels(x)
        u, _ = self.window(inputs, self.window.start(len(x), self._weight))
        with full_precision(x):
            q, k, v = self.read(u.to(self._weight))
            s = q @ k.mT * k.shape[-1] ** -0.5
            o = (1 + s + 0.5 * s.square()).tril() @ v
        return self.out(o, None, u, bypass)

    def feature(self, x: Tensor) -> Tensor:
        z = F.pad(x / x.shape[-1] ** 0.25, (1, 0), value=1.0)
        return (z @ self.first) * (z @ self.second.sqrt())
