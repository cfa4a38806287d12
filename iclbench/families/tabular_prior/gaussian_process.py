"""Functions of a Gaussian process with an RBF kernel, and their exact posterior given every prefix.

    k(x, x') = exp(-d² / (2 l²)),    d² = mean over the used columns of (x_j - x'_j)²,

so the lengthscale of each column is l sqrt(columns). Outputs have noise of variance s². Both l and s are drawn per
table from short lists, and all pairs are equally likely. The posterior averaged over the pairs is then a finite mixture
of Gaussians, so the Bayes-optimal prediction is exact.

With the Cholesky factor L of the covariance of the noisy outputs of N rows, and z = L⁻¹ y, output n has the mean y_n -
L_nn z_n and the standard deviation L_nn given all earlier outputs. A single factor is therefore sufficient for the
predictions of all prefixes.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from iclbench.families.sampling import normal

_LOG_2PI = math.log(2 * math.pi)
# Largest number of entries of the covariance matrices that are in memory at once.
_NUMBERS_AT_ONCE = 1 << 24


def covariance(
    a: Float[Tensor, "*S N C"],
    b: Float[Tensor, "*S P C"],
    used: Num[Tensor, "*S"],
    lengthscale: Float[Tensor, "*S"],
) -> Float[Tensor, "*S N P"]:
    """Return the kernel matrices between two sets of rows, in float64. Unused columns are 0 in both sets.

    Args:
        a, b: the rows.
        used: number of used columns.
        lengthscale: the lengthscale l.
    """
    scale = (used.double().sqrt() * lengthscale)[..., None, None]
    distance = torch.cdist(a.double() / scale, b.double() / scale, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-0.5 * distance.square())


def sample_outputs(
    x: Float[Tensor, "B N C"],
    used: Num[Tensor, " B"],
    lengthscale: Float[Tensor, " B"],
    noise: Float[Tensor, " B"],
    generator: torch.Generator,
) -> Float[Tensor, "B N"]:
    """Sample the noisy outputs of one function per table, in float32."""
    normals = normal((*x.shape[:2], 1), generator).double()
    at_once, outputs = max(1, _NUMBERS_AT_ONCE // x.shape[1] ** 2), []
    for start in range(0, len(x), at_once):
        part = slice(start, start + at_once)
        mask = torch.ones_like(x[part, :, 0], dtype=torch.bool)
        factor = _factor(covariance(x[part], x[part], used[part], lengthscale[part]), noise[part], mask)
        outputs.append((factor @ normals[part]).squeeze(2).float())
    return torch.cat(outputs)


def predict_prefixes(
    x: Float[Tensor, "S N C"],
    y: Float[Tensor, "S N"],
    mask: Bool[Tensor, "S N"],
    used: Num[Tensor, " S"],
    lengthscale: Float[Tensor, " S"],
    noise: Float[Tensor, " S"],
) -> tuple[Float[Tensor, "S N"], Float[Tensor, "S N"], Float[Tensor, "S N"]]:
    """Return the distribution of every output given the valid outputs before it.

    Returns:
        Means and standard deviations in float64, which are arbitrary at masked rows, and the log evidence of the valid
        rows before each row.
    """
    factor = _factor(covariance(x, x, used, lengthscale), noise, mask)
    y = torch.where(mask, y.double(), 0.0)
    z = torch.linalg.solve_triangular(factor, y.unsqueeze(2), upper=False).squeeze(2)
    std = factor.diagonal(dim1=1, dim2=2)
    log_density = torch.where(mask, -std.log() - 0.5 * z.square() - 0.5 * _LOG_2PI, 0.0)
    return y - std * z, std, log_density.cumsum(1) - log_density


def predict_targets(
    x: Float[Tensor, "S N C"],
    y: Float[Tensor, "S N"],
    mask: Bool[Tensor, "S N"],
    x_target: Float[Tensor, "S Q C"],
    used: Num[Tensor, " S"],
    lengthscale: Float[Tensor, " S"],
    noise: Float[Tensor, " S"],
) -> tuple[Float[Tensor, "S Q"], Float[Tensor, "S Q"], Float[Tensor, " S"]]:
    """Return the distribution of the noisy output at every target given the valid rows.

    Returns:
        Means and standard deviations in float64, and the log evidence of the valid rows.
    """
    factor = _factor(covariance(x, x, used, lengthscale), noise, mask)
    cross = covariance(x, x_target, used, lengthscale) * mask.unsqueeze(2)
    y = torch.where(mask, y.double(), 0.0)
    solved = torch.linalg.solve_triangular(factor, torch.cat([cross, y.unsqueeze(2)], 2), upper=False)
    reduction, z = solved[..., :-1], solved[..., -1:]
    variance = (1 + noise.unsqueeze(1) ** 2 - reduction.square().sum(1)).clamp_min(noise.unsqueeze(1) ** 2)
    log_density = -factor.diagonal(dim1=1, dim2=2).log() - 0.5 * z.squeeze(2).square() - 0.5 * _LOG_2PI
    return (reduction * z).sum(1), variance.sqrt(), torch.where(mask, log_density, 0.0).sum(1)


def _factor(
    gram: Float[Tensor, "S N N"], noise: Float[Tensor, " S"], mask: Bool[Tensor, "S N"]
) -> Float[Tensor, "S N N"]:
    """Return the Cholesky factor of the covariance of noisy outputs. Masked rows are independent of all other rows and
    have variance 1."""
    gram = gram * mask[:, :, None] * mask[:, None, :]
    gram.diagonal(dim1=1, dim2=2).add_(torch.where(mask, noise.double().square().unsqueeze(1), 1.0))
    return torch.linalg.cholesky(gram)
