"""Gated DeltaProduct (Siems et al. 2025, arXiv 2502.10297): several steps of the gated delta rule per token."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.gated_deltanet import GatedDeltaNet
from iclbench.layers.mixers.linear_mixer import delta_rule
from iclbench.layers.mixers.mixer import Sizes, split_heads

_HOUSEHOLDERS = 2


class GatedDeltaProduct(GatedDeltaNet):
    """S <- alpha_t S, then S <- (I - beta_j k_j k_j^T) S + beta_j k_j v_j^T for j = 1 to n, each with its own k, v and
    beta, then o = S^T q / sqrt(K), alpha = e^(-A softplus(.)) per head.

    The transition of a token is alpha times a product of n generalised Householder matrices. The setting `householders`
    is n (by default 2); with n = 1, the recurrence is that of gated DeltaNet. By default, beta = 2 sigmoid(.), so that
    the eigenvalue of a step along its key is between -1 and 1, and two steps can rotate a state; with the setting
    `eigenvalues=positive`, beta = sigmoid(.).

    Convolution, norms, gate and initialisation are those of `gated-deltanet`; the convolution is applied to the keys
    and values of all steps. The mixer has about (3.75 + 2.25 n) D² parameters: keys have K = 0.75 D / H channels per
    head, rounded down, and values are twice as wide. This follows the layer in flash-linear-attention, with three
    differences: A is drawn from U(1, 16) instead of U(0, 16), epsilon of the norm is 1e-6 instead of 1e-5, and linear
    layers use PyTorch's default initialisation, with output weights scaled down with depth.
    """

    uses = GatedDeltaNet.uses | {"householders"}

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, sizes.householders or _HOUSEHOLDERS)
        self.eigenvalues = sizes.eigenvalues or "negative"

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = F.silu(u).split(self.qkv_sizes, -1)
        _, beta_logits, dt = bypass.split(self.bypass_sizes, -1)
        k, v, beta_logits = (t.unflatten(-1, (self.steps, -1)).flatten(1, 2) for t in (k, v, beta_logits))
        # The state decays before the first step, and is read after the last one.
        decay = pad_steps(self.decays(dt), 0, self.steps - 1).mT.unsqueeze(-1)
        q, k, v = (split_heads(t, self.heads) for t in (pad_steps(q, self.steps - 1, 0), k, v))
        return delta_rule(q, k, v, beta_logits, decay, self.eigenvalues)


def pad_steps(t: Float[Tensor, "B T C"], before: int, after: int) -> Float[Tensor, "B _ C"]:
    """Add steps with zeros before and after the step of each token."""
    return F.pad(t.unsqueeze(2), (0, 0, before, after)).flatten(1, 2)
