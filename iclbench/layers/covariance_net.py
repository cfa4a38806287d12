"""The network for the covariance of all targets of an episode, in TNP-ND (Nguyen and Grover 2022, section 3.3) and
CMANP-AND.

In two further Transformer layers, the targets attend to one another. A perceptron then maps each target to 20 numbers
per output. Each group of 20 numbers is a row of a matrix P; the rows are in the order of the targets. P determines the
covariance in one of two forms:

    tril        L = tril(P P^T), used as the Cholesky factor of the covariance;
    low-rank    covariance P P^T + D, with a diagonal D from another perceptron.

`tril` is the default of the released code. L is the lower triangle of P P^T and not its Cholesky factor, so the
covariance L L^T depends on the order of the targets. If the row of a target in P is small, so is its element on the
diagonal of L, which is the standard deviation of the target given the targets before it.
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
# Lower bound on the diagonal of L, in addition to the floor of the head.
_MIN_DIAGONAL = 1e-6


class CovarianceNet(nn.Module):
    """Maps vectors of targets to a joint Gaussian over all targets.

    Args:
        width: width D of the targets' vectors.
        heads: number of attention heads.
        feedforward: hidden width of layers and perceptrons.
        outputs: number of outputs dy.
        form: `tril` or `low-rank`.
        head: settings of the head. Its spread determines the diagonal of L: `floor` gives sqrt(L_ii² + floor²),
            `bounded-m` gives m + (1 - m) tanh(L_ii), and `exp` leaves it unchanged. With `exp`, D is exp(r), as in the
            released code; with other spreads, sqrt(D) is the standard deviation of a Gaussian head.
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
        """Return the joint Gaussian with this mean.

        Args:
            hidden: the targets' vectors.
            mean: means of the targets.
            mask: valid targets, the only ones to which targets attend; None means all.
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
        """Return the joint log-density, computed in double precision. `tril` uses L directly, because L L^T may have no
        Cholesky factor in finite precision. If the diagonal of L is tiny, z = L⁻¹ (y - mean) and the loss are huge but
        finite.

        Args:
            answer: output of `forward` with the same mask.
            y: true outputs.
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
