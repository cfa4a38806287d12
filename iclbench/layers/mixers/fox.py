"""Forgetting attention (Lin et al. 2025, "Forgetting Transformer: softmax attention with a forget gate", arXiv
2503.02130)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.layers.mixers.mixer import Sizes, split_heads
from iclbench.layers.mixers.transition_attention import TransitionAttention
from iclbench.layers.mixers.window import Window
from iclbench.layers.transition_attention import Terms


class FoX(TransitionAttention):
    """o_t = sum over j <= t of a_tj v_j, a_t = softmax over j of q_t k_j / sqrt(C) + log f_{j+1} + ... + log f_t, with
    f = sigmoid(.) per head and C channels per head.

    The mixer is that of FoX (LLaMA) in the paper: no positions, no bias except that of the forget gates, which starts
    at 0, so that f starts near 0.5. It has 4 D² + D H + H parameters. The output gate, the norms and the shifts of keys
    and values of FoX (Pro) are not available. An optional convolution is applied to q, k and v, without an activation.
    The state holds all keys and values, the sum of the log f after each key, and the mask of valid tokens. Differences
    from the release: linear layers use PyTorch's default initialisation instead of a normal distribution; output
    weights are scaled down with depth.
    """

    uses = frozenset({"heads", "inner", "conv"})
    has_decays = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.in_proj = nn.Linear(sizes.width, 3 * self.inner, bias=False)
        self.gates = nn.Linear(sizes.width, sizes.heads)
        nn.init.zeros_(self.gates.bias)
        self.window = Window(3 * self.inner, self.taps(sizes))

    def channels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.in_proj(x), self.gates(x)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in u.chunk(3, -1))
        return Terms(q * q.shape[-1] ** -0.5, k, v, F.logsigmoid(bypass).mT)
