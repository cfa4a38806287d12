"""Log evidence of data under thousands of kernels at once, without covariance matrices.

The prior over kernels (`KernelPrior`) is approximated by a finite set of nodes with prior weights. RBF nodes are
equidistant in log l. Periodic nodes are equidistant in the frequency 2 pi / l, where the prior density is proportional
to l. The frequency needs a fine grid, since 128 points on [-4, 4] determine it to about 0.006.

At every node, the kernel is a cosine series (`kernels`), so the kernel matrix is W W', where W has 2K + 1 columns. With
noise variance s²,

    log N(y; 0, W W' + s² I) = -1/2 [ y'y/s² - |L⁻¹ W'y|²/s⁴ + 2 log det L + N log(2 pi s²) ],   L L' = I + W'W/s²

(Woodbury). Products of cosines and sines are sums of cosines and sines, so W'W needs only sum_n exp(i m w x_n) for m =
0, ..., 2K. For periodic nodes, all m w are multiples t of one frequency: with t = a A + b and exp(i t x) = exp(i a A x)
exp(i b x), these sums are one product of two small matrices. RBF nodes are far fewer, and their sums are computed with
a running product over m.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.families.gaussian_processes.gp_mixture import KernelPrior
from iclbench.families.gaussian_processes.kernels import (
    HARMONICS,
    PERIODIC,
    RBF,
    CosineSeries,
    cosine_series,
    series_terms,
)

# Number of entries of W'W in memory at once.
_MAX_ENTRIES = 400_000


@dataclass(frozen=True)
class Nodes:
    """Kernels and their prior weights: RBF kernels first, each type in ascending order of lengthscales.

    Attributes:
        kernel: indices of the kernels in `KERNELS`.
        lengthscale: lengthscales in float64.
        log_prior: logarithms of the weights, which sum to 1.
        step: common divisor of the frequencies of the periodic kernels.
    """

    kernel: Int[Tensor, " S"]
    lengthscale: Float[Tensor, " S"]
    log_prior: Float[Tensor, " S"]
    step: float

    @classmethod
    def of(cls, prior: KernelPrior, rbf_count: int, step: float) -> Nodes:
        """Create about `rbf_count` RBF nodes, equidistant in log l, and periodic nodes with the spacing `step` in 2 pi
        / l."""
        if not prior.log_range:
            step = 2 * math.pi / prior.shortest_lengthscale
        kernels, lengthscales, weights = [], [], []
        for kernel in sorted(prior.kernels):
            parts = [
                _rbf_lengthscales(low, high, rbf_count, prior)
                if kernel == RBF
                else _periodic_lengthscales(low, high, step)
                for low, high in prior.intervals
            ]
            scale, weight = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            lengthscales.append(scale)
            weights.append((weight / weight.sum() / len(prior.kernels)).log())
            kernels.append(torch.full((len(scale),), kernel))
        return cls(torch.cat(kernels), torch.cat(lengthscales), torch.cat(weights), step)

    @property
    def multiple(self) -> Int[Tensor, " P"]:
        """The frequencies of the periodic nodes in units of `step`."""
        return (2 * math.pi / self.step / self.lengthscale[self.kernel == PERIODIC]).round().long()


_WeightedLengthscales = tuple[Float[Tensor, " S"], Float[Tensor, " S"]]


def _rbf_lengthscales(low: float, high: float, rbf_count: int, prior: KernelPrior) -> _WeightedLengthscales:
    """Return lengthscales at the centres of cells with equal prior mass, and the mass of each cell."""
    share = math.log(high / low) / prior.log_range if prior.log_range else 1.0
    count = math.ceil(rbf_count * share) if high > low else 1
    midpoints = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return low * (high / low) ** midpoints, torch.full((count,), share / count, dtype=torch.float64)


def _periodic_lengthscales(low: float, high: float, step: float) -> _WeightedLengthscales:
    """Return lengthscales whose frequencies are multiples of `step`, and the prior mass of their cells up to a
    factor."""
    lowest, highest = 2 * math.pi / high / step, 2 * math.pi / low / step
    multiple = torch.arange(round(highest), round(lowest) - 1, -1, dtype=torch.float64).clamp_min(1)
    if len(multiple) == 1:
        return 2 * math.pi / step / multiple, torch.ones(1, dtype=torch.float64)
    width = (multiple + 0.5).clamp_max(highest) - (multiple - 0.5).clamp_min(lowest)
    return 2 * math.pi / step / multiple, width / multiple


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
        self._nodes = nodes
        self._rbf_blocks = list(_blocks(RBF, nodes, span))
        self._periodic_blocks = list(_blocks(PERIODIC, nodes, span))
        self._multiples = nodes.multiple.split(len(self._periodic_blocks[0].power)) if self._periodic_blocks else ()

    def __call__(self, x: Float[Tensor, " N"], y: Float[Tensor, " N"]) -> Float[Tensor, " S"]:
        """Return the log evidence of `y` at `x`; raise `UsageError` if two inputs are further apart than `span`."""
        if not len(x):
            return torch.zeros_like(self._nodes.log_prior)
        if (width := float(x.max() - x.min())) > self.span:
            raise UsageError(
                f"two inputs are {width:g} apart, but the ranges of the task allow at most {self.span:g}",
                code="bad-value",
            )
        x, y = x.double(), y.double()
        blocks = [self._block_evidence(series, *_running_sums(series, x, y), y) for series in self._rbf_blocks]
        if self._periodic_blocks:
            table = _sums_of_multiples(self._nodes.step, 2 * HARMONICS * int(self._nodes.multiple.max()), x, y)
            order = torch.arange(2 * HARMONICS + 1)
            for series, multiple in zip(self._periodic_blocks, self._multiples, strict=True):
                sums, weighted_sums = table[:, multiple[:, None] * order]
                blocks.append(self._block_evidence(series, sums, weighted_sums, y))
        return torch.cat(blocks)

    def _block_evidence(
        self, series: CosineSeries, sums: Complex[Tensor, "S M"], weighted_sums: Complex[Tensor, "S M"], y: Tensor
    ) -> Float[Tensor, " S"]:
        variance = self.noise**2
        gram, projected = _gram(series.power, sums, weighted_sums)
        gram.div_(variance).diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky(gram)
        solved = torch.linalg.solve_triangular(factor, projected.unsqueeze(-1), upper=False).squeeze(-1)
        quadratic = y.square().sum() / variance - solved.square().sum(1) / variance**2
        logdet = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) + len(y) * math.log(2 * math.pi * variance)
        return -0.5 * (quadratic + logdet)


def _blocks(kernel: int, nodes: Nodes, span: float) -> Iterator[CosineSeries]:
    """Yield the series of all nodes with one type of kernel in blocks of consecutive nodes. Within a block, all series
    have the same number of terms."""
    lengthscales = nodes.lengthscale[nodes.kernel == kernel]
    while len(lengthscales):
        terms = series_terms(kernel, float(lengthscales[0]), span)
        size = math.ceil(_MAX_ENTRIES / (2 * terms + 1) ** 2)
        yield cosine_series(kernel, lengthscales[:size], span, terms)
        lengthscales = lengthscales[size:]


def _running_sums(
    series: CosineSeries, x: Float[Tensor, " N"], y: Float[Tensor, " N"]
) -> tuple[Complex[Tensor, "S M"], Complex[Tensor, "S M"]]:
    """Return sum_n exp(i m w x_n) and sum_n y_n exp(i m w x_n) for m = 0, ..., 2K and every frequency w of a series."""
    rotation = torch.polar(torch.ones((), dtype=torch.float64), series.frequency[:, None] * x)
    columns = torch.stack([torch.ones_like(y), y], 1).to(rotation.dtype)
    power = torch.ones_like(rotation)
    sums = []
    for _ in range(2 * series.power.shape[1] - 1):
        sums.append(power @ columns)
        power.mul_(rotation)
    plain_sums, weighted_sums = torch.stack(sums, 1).unbind(-1)
    return plain_sums, weighted_sums


def _sums_of_multiples(
    step: float, max_multiple: int, x: Float[Tensor, " N"], y: Float[Tensor, " N"]
) -> Complex[Tensor, "2 M"]:
    """Return sum_n exp(i t step x_n) and sum_n y_n exp(i t step x_n) for t from 0 to at least `max_multiple`."""
    size = math.isqrt(max_multiple) + 1
    unit = torch.ones((), dtype=torch.float64)
    coarse_rotations = torch.polar(unit, torch.arange(size)[:, None] * (size * step * x))
    fine_rotations = torch.polar(unit, torch.arange(size)[:, None] * (step * x))
    return (torch.cat([coarse_rotations, coarse_rotations * y]) @ fine_rotations.T).view(2, -1)


def _gram(
    power: Float[Tensor, "S terms"], sums: Complex[Tensor, "S M"], weighted_sums: Complex[Tensor, "S M"]
) -> tuple[Float[Tensor, "S R R"], Float[Tensor, "S R"]]:
    """Return W'W and W'y, where the columns of W are cosines 0, ..., K and sines 1, ..., K times the roots of their
    powers."""
    terms = power.shape[1] - 1
    first, second, sign = _product_indices(terms)
    parts = torch.cat([sums.real, sums.imag], 1)
    gram = parts.index_select(1, first).add_(parts.index_select(1, second).mul_(sign))
    gram = gram.unflatten(1, (2 * terms + 1, -1))
    root = power.sqrt()
    root = torch.cat([root, root[:, 1:]], 1)
    projected = torch.cat([weighted_sums.real[:, : terms + 1], weighted_sums.imag[:, 1 : terms + 1]], 1)
    half = math.sqrt(0.5) * root  # `gram` holds twice the products
    return gram.mul_(half[:, :, None]).mul_(half[:, None, :]), projected * root


@cache
def _product_indices(terms: int) -> tuple[Int[Tensor, " entries"], Int[Tensor, " entries"], Float[Tensor, " entries"]]:
    """Return the indices of the two sums whose combination is twice the product of columns k and m, and the sign of the
    second sum.

    Let C_n and S_n be the sums of cosines and sines. Twice cos k cos m is C_|k-m| + C_(k+m), twice sin k sin m is
    C_|k-m| - C_(k+m), and twice cos k sin m is S_(k+m) + sign(m - k) S_|k-m|. In the array of sums, all S_n follow all
    C_n.
    """
    order = torch.cat([torch.arange(terms + 1), torch.arange(1, terms + 1)])
    is_sine = torch.arange(len(order)) > terms
    k, m = order[:, None], order[None, :]
    is_mixed, both_sines = is_sine[:, None] ^ is_sine[None, :], is_sine[:, None] & is_sine[None, :]
    offset = is_mixed * (2 * terms + 1)
    difference = torch.where(is_sine[None, :], m - k, k - m)  # order of the sine minus order of the cosine
    sign = torch.where(is_mixed, difference.sign(), torch.where(both_sines, -1, 1))
    first = torch.where(is_mixed, k + m, (k - m).abs()) + offset
    second = torch.where(is_mixed, (k - m).abs(), k + m) + offset
    return first.flatten(), second.flatten(), sign.flatten().double()
