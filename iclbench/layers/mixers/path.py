"""PaTH attention (Yang et al. 2025, "PaTH attention: position encoding via accumulating Householder transformations",
arXiv 2505.16381)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from iclbench.layers.mixers.mixer import Sizes, head_channels, split_heads, unit_vectors
from iclbench.layers.mixers.transition_attention import TransitionAttention
from iclbench.layers.mixers.window import Window
from iclbench.layers.transition_attention import Terms

_LARGEST_RANK = 32


class PaTH(TransitionAttention):
    """o_t = sum over j <= t of a_tj v_j, a_t = softmax over j of q_t^T A_t A_{t-1} ... A_{j+1} k_j / sqrt(C), with A =
    I - beta w w^T, beta = 2 sigmoid(.) per head, w of length 1 and C channels per head.

    The matrices A are the transitions of the delta rule, and their products take the place of positions. w is a
    low-rank map of the token, with a convolution of 3 taps and SiLU. The mixer has 4 D² + 2 D r + 3 D + D H + H
    parameters, with rank r = D / H, the width of a head, but at most 32. Only beta has a bias. It starts at 0, so that
    beta starts near 1. The state holds all values, all keys multiplied by the A of the tokens after them, and the mask
    of valid tokens.

    This follows the layer in flash-linear-attention, without its optional forget gates and norms of q and k.
    Differences from it: its rank is always 32, which can be more than the width of a small model; linear layers use
    PyTorch's default initialisation instead of a normal distribution; output weights are scaled down with depth.
    """

    uses = frozenset({"heads", "inner", "conv", "rank"})
    default_conv = 3
    has_decays = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        rank = sizes.rank or min(head_channels(sizes), _LARGEST_RANK)
        self.in_proj = nn.Linear(sizes.width, 3 * self.inner, bias=False)
        self.w_proj = nn.Sequential(nn.Linear(sizes.width, rank, bias=False), nn.Linear(rank, self.inner, bias=False))
        self.beta_proj = nn.Linear(sizes.width, sizes.heads)
        nn.init.zeros_(self.beta_proj.bias)
        self.window = Window(self.inner, self.taps(sizes))

    def channels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.w_proj(x), torch.cat([self.in_proj(x), self.beta_proj(x)], -1)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        *qkv, beta_logits = bypass.split([self.inner, self.inner, self.inner, self.heads], -1)
        q, k, v = (split_heads(t, self.heads) for t in qkv)
        w = unit_vectors(split_heads(self.window.activate(u), self.heads))
        beta = 2 * beta_logits.sigmoid().mT.unsqueeze(-1)
        return Terms(q * q.shape[-1] ** -0.5, k, v, None, w, beta)
