"""The exact posterior of Gaussian processes given their kernels (Rasmussen and Williams 2006, equations 2.25, 2.26)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.families.gaussian_processes.kernels import covariance


def posterior(
    kernel: Int[Tensor, " S"],
    lengthscale: Float[Tensor, " S"],
    context: Points,
    x: Float[Tensor, "S Q 1"],
    noise: float,
) -> tuple[Float[Tensor, "S Q"], Float[Tensor, "S Q"]]:
    """Return the marginal means and standard deviations of the noisy outputs at `x`, in float64. Masked points are
    ignored. Without points, the result is the prior."""
    mean, reduction = _mean_and_reduction(kernel, lengthscale, context, x, noise)
    variance = (1 + noise**2 - reduction.square().sum(1)).clamp_min(noise**2)
    return mean, variance.sqrt()


def joint_posterior(
    kernel: Int[Tensor, " S"],
    lengthscale: Float[Tensor, " S"],
    context: Points,
    x: Float[Tensor, "S Q 1"],
    noise: float,
) -> tuple[Float[Tensor, "S Q"], Float[Tensor, "S Q Q"]]:
    """Return the mean of the noisy outputs and the Cholesky factor of their covariance; see `posterior`."""
    mean, reduction = _mean_and_reduction(kernel, lengthscale, context, x, noise)
    posterior_covariance = covariance(kernel, lengthscale, x, x) - reduction.mT @ reduction
    posterior_covariance.diagonal(dim1=1, dim2=2).add_(noise**2)
    return mean, torch.linalg.cholesky(posterior_covariance)


def _mean_and_reduction(
    kernel: Int[Tensor, " S"],
    lengthscale: Float[Tensor, " S"],
    context: Points,
    x: Float[Tensor, "S Q 1"],
    noise: float,
) -> tuple[Float[Tensor, "S Q"], Float[Tensor, "S N Q"]]:
    """Return the means at `x`, and V such that V'V is the reduction of the covariance by the context."""
    valid = context.mask.double()
    gram = covariance(kernel, lengthscale, context.x, context.x) * valid[:, :, None] * valid[:, None, :]
    # Masked points are independent of all other points.
    gram.diagonal(dim1=1, dim2=2).add_(torch.where(context.mask, noise**2, 1.0))
    cross = covariance(kernel, lengthscale, context.x, x) * valid[:, :, None]
    y = torch.where(context.mask, context.y.squeeze(-1).double(), 0.0)
    factor = torch.linalg.cholesky(gram)
    solved = torch.linalg.solve_triangular(factor, torch.cat([cross, y.unsqueeze(-1)], -1), upper=False)
    reduction, y = solved[..., :-1], solved[..., -1:]
    return (reduction * y).sum(1), reduction
