"""The covariance of all targets of an episode in TNP-ND (Nguyen and Grover 2022, section 3.3) and CMANP-AND.

Two more Transformer layers let the targets attend to one another, and a perceptron maps each to P, 20 numbers per
output. The rows of P of all targets and outputs, in the order of the targets, give one of

    tril        L = tril(P P^T), used as the Cholesky factor of the covariance;
    low-rank    covariance P P^T + D, with a diagonal D from another perceptron.

`tril` is the default of the released code. L is the lower triangle of P P^T, not its Cholesky factor: the covariance
L L^T depends on the order of the targets. If P of a target is small, so is its element on the diagonal of L, which is
its standard deviation given the targets before it.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.core.joint import JointGaussian
from iclbench.core.predictions import Gaussian, HeadSettings
from iclbench.layers.encoder_layer import EncoderLayer
from iclbench.layers.perceptron import perceptron

Covariance = Literal["tril", "low-rank"]
LAYERS, COLUMNS = 2, 20
# Lower bound of the diagonal of L if the head sets none.
_MIN_DIAGONAL = 1e-6


class CovarianceNet(nn.Module):
    """Maps vectors of targets to a joint Gaussian over all targets.

    Args:
        width: D of the targets' vectors.
        heads: number of attention heads.
        feedforward: hidden width of layers and perceptrons.
        outputs: number of outputs dy.
        form: `tril` or `low-rank`.
        head: settings of the head. With spread `floor` the diagonal of L is sqrt(L_ii² + floor²), with `bounded-m` it
            is m + (1 - m) tanh(L_ii), with `exp` it is unchanged. With `exp`, D is exp(r), as in the released code;
            with the others, sqrt(D) is the standard deviation that a Gaussian head gives.
    """

    def __init__(
        self, width: int, heads: int, feedforward: int, outputs: int, form: Covariance, head: HeadSettings
    ) -> None:
        super().__init__()
        self.head = head
        self.layers = nn.ModuleList(EncoderLayer(width, heads, feedforward) for _ in range(LAYERS))
        self.projector = perceptron(width, *[feedforward] * 3, COLUMNS * outputs)
        self.diagonal = perceptron(width, *[feedforward] * 3, outputs) if form == "low-rank" else None

    def forward(
        self,
        hidden: Float[Tensor, "B Q D"],
        mean: Float[Tensor, "B Q dy"],
        mask: Bool[Tensor, "B Q"] | None = None,
    ) -> JointGaussian:
        """The Gaussian with this mean.

        Args:
            hidden: the targets' vectors.
            mean: their means.
            mask: valid targets; only these are attended to; None means all.
        """
        mixed = hidden
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            mixed = layer.attend(mixed, layer.keys(mixed, mask))
        columns = self.projector(mixed).unflatten(-1, (mean.shape[-1], COLUMNS))
        if self.diagonal is not None:
            raw = self.diagonal(hidden)
            raw = raw / 2 if self.head.spread == "exp" else raw
            std = Gaussian.from_raw(torch.cat([mean, raw], -1), mean.shape[-1], self.head).std
            return JointGaussian(mean, columns, std)
        rows = columns.flatten(1, 2)
        product = rows @ rows.mT
        diagonal = self._bounded(product.diagonal(dim1=1, dim2=2))
        return JointGaussian.from_tril(mean, product.tril(-1) + torch.diag_embed(diagonal))

    def log_likelihood(
        self, answer: JointGaussian, y: Float[Tensor, "B Q dy"], mask: Bool[Tensor, "B Q"]
    ) -> Float[Tensor, " B"]:
        """Joint log-density in double precision. `tril` uses L directly, because L L^T may have no Cholesky factor in
        finite precision. If the diagonal of L is tiny, z = L⁻¹ (y - mean) and the loss are huge but finite.

        Args:
            answer: output of `forward` with the same mask.
            y: the outputs.
            mask: targets that are scored; only their rows and columns of L are used.
        """
        if self.diagonal is not None:
            return answer.joint_log_likelihood(y, mask)
        is_scored = mask.unsqueeze(-1).expand(y.shape).flatten(1)
        tril = answer.factor.flatten(1, 2).double()
        # z is 0 for targets outside the mask, so that their columns contribute nothing.
        identity = torch.eye(is_scored.shape[1], dtype=tril.dtype, device=tril.device)
        tril = torch.where(is_scored.unsqueeze(-1), tril, identity)
        error = torch.where(is_scored, (y - answer.mean).double().flatten(1), 0.0)
        z = torch.linalg.solve_triangular(tril, error.unsqueeze(-1), upper=False).squeeze(-1)
        log_determinant = tril.diagonal(dim1=1, dim2=2).log().sum(1)
        normaliser = log_determinant + 0.5 * math.log(2 * math.pi) * is_scored.double().sum(1)
        return -0.5 * z.square().sum(1) - normaliser

    def _bounded(self, diagonal: Float[Tensor, "B QD"]) -> Float[Tensor, "B QD"]:
        spread = self.head.spread
        if spread.startswith("bounded"):
            bound = float(spread.removeprefix("bounded-"))
            return bound + (1 - bound) * diagonal.tanh()
        floor = self.head.floor if spread == "floor" else 0.0
        return (diagonal.square() + floor**2 + _MIN_DIAGONAL**2).sqrt()
