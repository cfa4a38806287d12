"""Log evidence of data under thousands of kernels at once, without a covariance matrix.

The prior over kernels (`KernelPrior`) becomes a finite set of nodes with prior weights, by the midpoint rule: RBF
lengthscales uniform in log l; periodic ones uniform in the frequency 2 pi / l, where the prior density is proportional
to l. The frequency needs a fine grid: 128 points on [-4, 4] determine it to about 0.006.

At every node the kernel is a cosine series (`gp_kernels`), W W' with 2K + 1 columns, so that with s² for the noise

    log N(y; 0, W W' + s² I) = -1/2 [ y'y/s² - |L⁻¹ W'y|²/s⁴ + 2 log det L + N log(2 pi s²) ],   L L' = I + W'W/s²

(Woodbury). Products of cosines and sines are sums of them, so W'W needs only sum_n exp(i m w x_n) for m = 0, ..., 2K:
one running product, whatever the number of columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.errors import UsageError
from iclbench.families.gp_kernels import PERIODIC, RBF, CosineSeries, cosine_series, series_terms
from iclbench.families.gp_mixture import KernelPrior

# Entries of W'W that are held at once.
_ENTRIES = 200_000


@dataclass(frozen=True)
class Nodes:
    """Kernels and their prior weights; RBF first, each kind by its lengthscale."""

    kernel: Int[Tensor, " S"]
    lengthscale: Float[Tensor, " S"]
    log_prior: Float[Tensor, " S"]

    @classmethod
    def of(cls, prior: KernelPrior, rbf: int, spacing: float) -> Nodes:
        """About `rbf` nodes in log l, and periodic ones at most `spacing` apart in 2 pi / l."""
        kernels, lengthscales, weights = [], [], []
        for kernel in sorted(prior.kernels):
            parts = [_cells(kernel, low, high, prior, rbf, spacing) for low, high in prior.intervals]
            scale, weight = (torch.cat(list(both)) for both in zip(*parts, strict=True))
            lengthscales.append(scale)
            weights.append((weight / weight.sum() / len(prior.kernels)).log())
            kernels.append(torch.full((len(scale),), kernel))
        return cls(torch.cat(kernels), torch.cat(lengthscales), torch.cat(weights))


def _cells(
    kernel: int, low: float, high: float, prior: KernelPrior, rbf: int, spacing: float
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Lengthscales at the middle of equal cells and the prior mass of each, up to a factor."""
    if low == high:
        return torch.tensor([low], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if kernel == RBF:
        count = math.ceil(rbf * math.log(high / low) / prior.log_range)
        return torch.exp(_middles(math.log(low), math.log(high), count)), torch.full(
            (count,), math.log(high / low) / count, dtype=torch.float64
        )
    first, last = 2 * math.pi / high, 2 * math.pi / low
    count = math.ceil((last - first) / spacing)
    frequency = _middles(first, last, count).flip(0)
    return 2 * math.pi / frequency, (last - first) / count / frequency


def _middles(low: float, high: float, count: int) -> Float[Tensor, " count"]:
    return low + (high - low) / count * (torch.arange(count, dtype=torch.float64) + 0.5)


class Evidence:
    """The log evidence of one dataset at every node.

    Args:
        nodes: S kernels.
        noise: standard deviation of the noise.
        span: the largest distance between two inputs.
    """

    def __init__(self, nodes: Nodes, noise: float, span: float) -> None:
        self.noise = noise
        self.span = span
        self._size = len(nodes.kernel)
        self._blocks = list(_blocks(nodes, span))

    def __call__(self, x: Float[Tensor, " N"], y: Float[Tensor, " N"]) -> Float[Tensor, " S"]:
        if not len(x):
            return torch.zeros(self._size, dtype=torch.float64)
        if (width := float(x.max() - x.min())) > self.span:
            raise UsageError(f"two inputs are {width:g} apart; the task's ranges allow at most {self.span:g}")
        return torch.cat([self._of_block(block, x.double(), y.double()) for block in self._blocks])

    def _of_block(self, series: CosineSeries, x: Float[Tensor, " N"], y: Float[Tensor, " N"]) -> Float[Tensor, " S"]:
        variance = self.noise**2
        gram, projected = _gram(series, x, y)
        gram.div_(variance).diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky(gram)
        solved = torch.linalg.solve_triangular(factor, projected.unsqueeze(-1), upper=False).squeeze(-1)
        quadratic = y.square().sum() / variance - solved.square().sum(1) / variance**2
        logdet = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) + len(y) * math.log(2 * math.pi * variance)
        return -0.5 * (quadratic + logdet)


def _blocks(nodes: Nodes, span: float) -> Iterator[CosineSeries]:
    """The nodes in their order, in pieces of one kind and one number of terms."""
    for kernel in (RBF, PERIODIC):
        left = nodes.lengthscale[nodes.kernel == kernel]
        while len(left):
            terms = series_terms(kernel, float(left[0]), span)
            size = math.ceil(_ENTRIES / (2 * terms + 1) ** 2)
            yield cosine_series(kernel, left[:size], span, terms)
            left = left[size:]


def _gram(
    series: CosineSeries, x: Float[Tensor, " N"], y: Float[Tensor, " N"]
) -> tuple[Float[Tensor, "S R R"], Float[Tensor, "S R"]]:
    """W'W and W'y; the columns are cosines 0, ..., K and sines 1, ..., K times the roots of their coefficients."""
    terms = series.power.shape[1] - 1
    turn = torch.polar(torch.ones((), dtype=torch.float64), series.frequency[:, None] * x)
    # Real and imaginary part of the sums without and with y, as one real product.
    columns = torch.zeros(len(x), 2, 2, 2, dtype=torch.float64)
    columns[:, 0, 0, 0] = columns[:, 1, 0, 1] = 1
    columns[:, 0, 1, 0] = columns[:, 1, 1, 1] = y
    columns = columns.view(2 * len(x), 4)
    power = torch.ones_like(turn)
    sums = torch.empty(2 * terms + 1, len(turn), 4, dtype=torch.float64)
    for m in range(2 * terms + 1):
        torch.mm(torch.view_as_real(power).flatten(1), columns, out=sums[m])
        power.mul_(turn)
    cosines, sines, y_cosines, y_sines = sums.permute(2, 1, 0)
    first, second, sign = _products(terms)
    both = torch.cat([cosines, sines], 1)
    gram = both.index_select(1, first).add_(both.index_select(1, second).mul_(sign)).unflatten(1, (2 * terms + 1, -1))
    root = (0.5 * series.power).sqrt()
    root = torch.cat([root, root[:, 1:]], 1)
    projected = torch.cat([y_cosines[:, : terms + 1], y_sines[:, 1 : terms + 1]], 1)
    return gram.mul_(root[:, :, None]).mul_(root[:, None, :]), projected * (math.sqrt(2) * root)


@cache
def _products(terms: int) -> tuple[Int[Tensor, " entries"], Int[Tensor, " entries"], Float[Tensor, " entries"]]:
    """Which two sums make up twice the product of columns k and l, and the sign of the second. With C_m and S_m the
    sums of cos and sin: cos k cos l is C_|k-l| + C_(k+l), sin k sin l is C_|k-l| - C_(k+l), cos k sin l is
    S_(k+l) + sign(l - k) S_|k-l|; the S_m stand behind the C_m."""
    order = torch.cat([torch.arange(terms + 1), torch.arange(1, terms + 1)])
    sine = torch.arange(len(order)) > terms
    k, other = order[:, None], order[None, :]
    mixed, both = sine[:, None] ^ sine[None, :], sine[:, None] & sine[None, :]
    offset = mixed * (2 * terms + 1)
    ahead = torch.where(sine[None, :], other - k, k - other)  # the sine's order minus the cosine's
    sign = torch.where(mixed, ahead.sign(), torch.where(both, -1, 1))
    first = torch.where(mixed, k + other, (k - other).abs()) + offset
    second = torch.where(mixed, (k - other).abs(), k + other) + offset
    return first.flatten(), second.flatten(), sign.flatten().double()
