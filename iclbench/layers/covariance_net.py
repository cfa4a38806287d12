"""The covariance of all targets of an episode, as TNP-ND has it (Nguyen and Grover 2022, section 3.3; CMANP-AND took it
over): two more Transformer layers let the targets read one another, and a perceptron turns each into P, 20 numbers per
output. The rows of P of all targets and outputs give, in the order in which they are asked,

    tril        L = tril(P P^T) as the Cholesky factor of the covariance, whatever stands in it;
    low-rank    covariance P P^T + D, D a diagonal from another perceptron.

`tril` is what the released code has as its default. L is a lower triangle of an inner product, not a factor of it: the
covariance L L^T depends on the order of the targets, and where P of a target is small, so is its standard deviation
given the targets before it, which is the element of L on the diagonal.
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
# The least element on the diagonal of L where nothing else bounds it.
_LEAST = 1e-6


class CovarianceNet(nn.Module):
    """Vectors of targets to a Gaussian over all of them.

    Args:
        width: D of the targets' vectors.
        heads: of attention.
        feedforward: hidden width of layers and perceptrons.
        outputs: dy.
        form: tril or low-rank.
        head: floor and spread. With spread `floor` the floor's square is added to that of L's diagonal, with
            `bounded-m` the diagonal is m + (1 - m) tanh, with `exp` it is unchanged. D is exp(r) with `exp`, as in
            the released code whatever bounds L; with the others its root is the standard deviation of every Gaussian
            head.
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
            mask: the valid targets, which alone are read; None: all.
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
        """Joint log-density in double precision; of `tril` by L itself, since L L^T may have no Cholesky factor in
        finite precision. Where the diagonal of L is tiny, z = L⁻¹ (y - mean) is huge and so is the loss, but finite.

        Args:
            answer: what `forward` has made with the same mask.
            y: the outputs.
            mask: the targets that count, as if there were no others: of L their rows and columns.
        """
        if self.diagonal is not None:
            return answer.joint_log_likelihood(y, mask)
        counted = mask.unsqueeze(-1).expand(y.shape).flatten(1)
        tril = answer.factor.flatten(1, 2).double()
        # Of the others z is 0, so that nothing comes out of their columns.
        identity = torch.eye(counted.shape[1], dtype=tril.dtype, device=tril.device)
        tril = torch.where(counted.unsqueeze(-1), tril, identity)
        error = torch.where(counted, (y - answer.mean).double().flatten(1), 0.0)
        z = torch.linalg.solve_triangular(tril, error.unsqueeze(-1), upper=False).squeeze(-1)
        normaliser = tril.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * math.log(2 * math.pi) * counted.double().sum(1)
        return -0.5 * z.square().sum(1) - normaliser

    def _bounded(self, diagonal: Float[Tensor, "B QD"]) -> Float[Tensor, "B QD"]:
        spread = self.head.spread
        if spread.startswith("bounded"):
            least = float(spread.removeprefix("bounded-"))
            return least + (1 - least) * diagonal.tanh()
        floor = self.head.floor if spread == "floor" else 0.0
        return (diagonal.square() + floor**2 + _LEAST**2).sqrt()
