"""Ridge regression and kernel ridge regression for all prefixes from one triangular factor.

Kernel ridge regression is the posterior mean of Gaussian process regression. With K + noise I = L L', z = L⁻¹ y and
U = L⁻¹ k(X, q), the answer to the query q after n points is the sum over i < n of U_i z_i (Rasmussen and Williams 2006,
equation 2.25), because the factor of each prefix is a leading block of L.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.settings import BaseSettings, NonNegativeFloat, PositiveFloat
from iclbench.core.task import TaskFacts
from iclbench.estimators.base import Estimator, LinearEstimator
from iclbench.estimators.least_squares import least_squares
from iclbench.estimators.recursive import posterior_means

# Smallest penalty for the triangular factors, relative to the squared length of the longest input. For smaller
# penalties, squaring the condition number loses too many digits.
SMALLEST_PENALTY = 1e-9
# Smallest noise variance, relative to the variance of the kernel.
SMALLEST_NOISE = 1e-10


class RidgeSettings(BaseSettings):
    """Settings of ridge regression.

    Attributes:
        penalty: lambda in |y - Xw|² + lambda |w|², or "noise" for the task's noise-to-signal ratio, which is
            Bayes-optimal.
    """

    penalty: NonNegativeFloat | Literal["noise"] = "noise"


class Ridge(LinearEstimator[RidgeSettings]):
    """Ridge regression without intercept; a penalty of 0 gives its limit, minimum-norm least squares."""

    Settings = RidgeSettings

    def weights(self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
        setting = self.settings.penalty
        penalty = self.facts.noise_to_signal if setting == "noise" else setting
        if penalty == 0:
            return least_squares(x, y)
        batch, _, d = x.shape
        identity = torch.eye(d, dtype=x.dtype, device=x.device).expand(batch, d, d)
        if penalty < SMALLEST_PENALTY * x.square().sum(-1).max():
            return _solve_each_prefix(x, y, math.sqrt(penalty) * identity)
        # The minimum of |y - Xw|² + lambda |w|² is the posterior mean for w ~ N(0, I / lambda) with unit noise.
        precision = penalty * identity
        return posterior_means(x, y, precision, x.new_zeros(batch, d))


def _solve_each_prefix(
    x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"], penalty_rows: Float[Tensor, "B Dx Dx"]
) -> Float[Tensor, "B N Dx"]:
    """Return least-squares solutions for the first 1, 2, ..., N points and the penalty rows, whose output is 0.

    Each prefix has its own QR decomposition, which is accurate for all scales of inputs.
    """
    solutions = []
    for n in range(1, x.shape[1] + 1):
        all_rows = torch.cat([penalty_rows, x[:, :n]], 1)
        scale = all_rows.norm(dim=1, keepdim=True)
        q, r = torch.linalg.qr(all_rows / scale)
        projected = (y[:, None, :n] @ q[:, penalty_rows.shape[1] :]).mT
        solutions.append(torch.linalg.solve_triangular(r, projected, upper=True).squeeze(-1) / scale.squeeze(1))
    return torch.stack(solutions, 1)


class FeatureRidge(Ridge):
    """Ridge regression on the features of a family whose functions are linear in these features.

    With the penalty "noise", the predictions are Bayes-optimal if the weights are sampled from N(0, v I), where v is
    the family's `weight_variance`.
    """

    def __init__(self, settings: RidgeSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        family = self.facts.family
        if family is None or family.features(torch.zeros(1, family.x_dim)) is None:
            raise UsageError(
                f"{type(self).__name__} needs a task whose functions are linear in known features, such as combination "
                "and quadratic; choose another baseline",
                code="not-applicable",
            )

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        return super().answer(self._features(x), y, lengths, self._features(queries))

    def _features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape features"]:
        features: Tensor = self.facts.family.features(x.flatten(0, -2))
        return features.unflatten(0, x.shape[:-1])


class KernelRidgeSettings(BaseSettings):
    """Settings of an RBF kernel variance * exp(-|a - b|² / (2 lengthscale²)) with observation noise.

    Attributes:
        lengthscale: a number, or "sqrt-dim" for the square root of the input dimension. The latter is 1 in one
            dimension and, up to a factor of sqrt 2, the typical distance between standardised inputs.
        variance: variance of the kernel.
        noise: variance of the observation noise; at least 1e-10 times `variance` is used.
    """

    lengthscale: PositiveFloat | Literal["sqrt-dim"] = "sqrt-dim"
    variance: PositiveFloat = 1.0
    noise: PositiveFloat = 1e-2


class KernelRidge(Estimator[KernelRidgeSettings]):
    """Gaussian process regression with prior mean 0 and a fixed kernel; the marginal likelihood is not maximised."""

    Settings = KernelRidgeSettings
    episodes_at_once = 16

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        covariance = self.kernel(x, x)
        # Smaller noise would be lost to rounding, so the kernel matrix of close points would be singular.
        covariance.diagonal(dim1=1, dim2=2).add_(max(self.settings.noise, SMALLEST_NOISE * self.settings.variance))
        factor = torch.linalg.cholesky(covariance)
        cross = self.kernel(x, queries.flatten(1, 2))
        solved = torch.linalg.solve_triangular(factor, torch.cat([cross, y.unsqueeze(-1)], -1), upper=False)
        terms = (solved[..., :-1] * solved[..., -1:]).unflatten(2, queries.shape[1:3])
        in_prefix = torch.arange(x.shape[1], device=x.device)[:, None] < lengths.unsqueeze(1)
        return (terms * in_prefix.unsqueeze(-1)).sum(1)

    def kernel(self, a: Float[Tensor, "B N Dx"], b: Float[Tensor, "B M Dx"]) -> Float[Tensor, "B N M"]:
        scale = self.settings.lengthscale
        scale = math.sqrt(a.shape[-1]) if scale == "sqrt-dim" else scale
        squared = (a.square().sum(-1).unsqueeze(2) + b.square().sum(-1).unsqueeze(1) - 2 * a @ b.mT).clamp_min(0)
        return self.settings.variance * (-0.5 * squared / scale**2).exp()
