"""The stationary kernels of the Gaussian-process task, as dense matrices and as cosine series on an interval.

RBF: exp(-d² / (2 l²)). Periodic: exp(-2 sin²(pi d / l) / lambda) with period l and lambda = ln 2, the default of the
library that the authors of the paper used. Both have variance 1.

For distances up to `span`, both kernels equal sum_k p_k cos(k w d) with few terms and p_k >= 0. For the periodic kernel
this is its Fourier series with p_0 = I_0(1/lambda) e^(-1/lambda), p_k = 2 I_k(1/lambda) e^(-1/lambda) and w = 2 pi / l.
The RBF kernel is repeated with a period so long that the copies do not reach the interval; the coefficients are then
its spectral density (Poisson summation). A sample of the process is a trigonometric polynomial with independent
coefficients, and a Gram matrix has rank 2K + 1, so neither sampling nor inference needs a dense Cholesky factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord

KERNELS = ("rbf", "periodic")
RBF, PERIODIC = range(2)
LAMBDA = math.log(2)
# The largest difference between a series and its kernel at any distance within the span.
TOLERANCE = 5e-10
# The distance in lengthscales at which an RBF kernel falls below the tolerance.
REACH = math.sqrt(-2 * math.log(TOLERANCE))
# Number of terms of the periodic kernel after the constant; the remainder is 4e-10.
HARMONICS = 10


def covariance(
    kernel: Int[Tensor, " S"],
    lengthscale: Float[Tensor, " S"],
    a: Float[Tensor, "S N 1"],
    b: Float[Tensor, "S P 1"],
) -> Float[Tensor, "S N P"]:
    """Return the kernel matrices of S processes between two sets of inputs, in float64."""
    scaled = (a.double() - b.double().transpose(1, 2)) / lengthscale.double()[:, None, None]
    values = torch.empty_like(scaled)
    rbf = kernel == RBF
    values[rbf] = torch.exp(-0.5 * scaled[rbf].square())
    values[~rbf] = torch.exp(-2 / LAMBDA * torch.sin(math.pi * scaled[~rbf]).square())
    return values


@dataclass(frozen=True)
class CosineSeries(TensorRecord):
    """k(d) = sum over k from 0 to K of `power[:, k] cos(k frequency d)`, for S kernels at once, in float64."""

    frequency: Float[Tensor, " S"]
    power: Float[Tensor, "S terms"]

    def covariance(self, distance: Float[Tensor, "*D"]) -> Float[Tensor, " S *D"]:
        """Return the values of all kernels at the given distances."""
        k = torch.arange(self.power.shape[1], dtype=torch.float64, device=distance.device)
        angle = distance[..., None] * k
        waves = torch.cos(self.frequency.view(-1, *[1] * angle.dim()) * angle)
        return (waves * self.power.view(len(self.power), *[1] * distance.dim(), -1)).sum(-1)

    def functions(self, normals: Float[Tensor, "S terms 2"], x: Float[Tensor, "S N"]) -> Float[Tensor, "S N"]:
        """Return the values of one sampled function of each process, given standard normal numbers. The values are Re
        sum_k c_k z^k with z = exp(i w x), evaluated by Horner's rule."""
        c = torch.view_as_complex(normals) * self.power.sqrt()
        z = torch.polar(torch.ones_like(x), self.frequency.unsqueeze(1) * x)
        *lower, total = c.unsqueeze(-1).unbind(1)
        for coefficient in reversed(lower):
            total = torch.addcmul(coefficient, total, z)
        return total.expand_as(z).real


def series_terms(kernel: int, shortest: float, span: float) -> int:
    """Return the number K of terms that a series needs for lengthscales of at least `shortest`."""
    if kernel == PERIODIC:
        return HARMONICS
    # The spectral density decays like the kernel, with 1/l instead of l.
    return math.ceil(REACH * (span + REACH * shortest) / (2 * math.pi * shortest))


def cosine_series(kernel: int, lengthscale: Float[Tensor, " S"], span: float, terms: int) -> CosineSeries:
    """Return the series of one type of kernel at S lengthscales, for distances up to `span` and K = `terms`."""
    scale = lengthscale.double()
    k = torch.arange(terms + 1, dtype=torch.float64, device=scale.device)
    multiplicity = torch.where(k == 0, 1.0, 2.0)
    if kernel == PERIODIC:
        return CosineSeries(2 * math.pi / scale, (multiplicity * _bessel(terms, scale.device)).expand(len(scale), -1))
    period = span + REACH * scale  # the tails of the copies do not reach the interval
    frequency = 2 * math.pi / period
    spectrum = torch.exp(-0.5 * (frequency * scale).unsqueeze(1).square() * k.square())
    return CosineSeries(frequency, multiplicity * spectrum * (math.sqrt(2 * math.pi) * scale / period).unsqueeze(1))


def mean_variance() -> float:
    """Return the variance of the mean of a periodic function over a period, p_0 = 0.376. Given the mean, the variance
    of the function is 1 - p_0."""
    return float(_bessel(0, torch.device("cpu"))[0])


@cache
def _bessel(terms: int, device: torch.device) -> Float[Tensor, " terms"]:
    """Return I_k(1/lambda) e^(-1/lambda) for k = 0, ..., terms. The result is cached, since every sample needs it."""
    from scipy.special import ive

    return torch.as_tensor(ive(np.arange(terms + 1), 1 / LAMBDA), device=device)
