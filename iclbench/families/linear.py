"""Linear functions y = w·x: isotropic, sparse, skewed and noisy (Garg et al. 2022; Grazzi et al. 2024, appendix A.1.3)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.cards import NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.episodes import Points
from iclbench.families.base import FunctionFamily, FunctionParameters, Truth
from iclbench.families.sampling import normal, skewed_inputs


class Linear(FunctionFamily):
    """w ~ N(0, I), x ~ N(0, I); variance d. Least squares is Bayes-optimal."""

    @property
    def normaliser(self) -> float:
        return float(self.x_dim)

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        return {"weights": normal((episodes, self.x_dim), generator)}

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        return torch.einsum("bnd,bd->bn", x, truth["weights"])


class SparseLinearParameters(FunctionParameters):
    sparsity: PositiveInt = 3


class SparseLinear(Linear):
    """Only `sparsity` random coordinates of w are non-zero, within the dimensions in use; variance s."""

    Parameters = SparseLinearParameters

    @property
    def sparsity(self) -> int:
        return min(self.parameters.sparsity, self.x_dim)

    @property
    def normaliser(self) -> float:
        return float(self.sparsity)

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        weights = normal((episodes, self.x_dim), generator)
        rank = torch.rand((episodes, self.x_dim), generator=generator, device=generator.device)
        if active_dims is not None:
            rank[:, active_dims:] = 2.0
        support = rank.argsort(1).argsort(1) < self.sparsity
        return {"weights": weights * support, "support": support}


class SkewedLinearParameters(FunctionParameters):
    exponent: PositiveFloat = 2.0
    rotation: Literal["episode", "batch", "fixed"] = "episode"


class SkewedLinear(Linear):
    """x = T z with covariance eigenvalues proportional to 1/i^exponent in a random basis, trace d; variance d.

    The paper's main text gives eigenvalues 1/i²; its appendix scales the map itself by 1/i², which is `exponent = 4`.
    `rotation` draws the basis per episode (paper), per call (its training code) or once (its evaluation code).
    """

    Parameters = SkewedLinearParameters

    def inputs(self, episodes: int, points: int, generator: torch.Generator) -> Float[Tensor, "B N Dx"]:
        z = normal((episodes, points, self.x_dim), generator)
        return skewed_inputs(z, generator, self.parameters.exponent, self.parameters.rotation)


class NoisyLinearParameters(FunctionParameters):
    noise: NonNegativeFloat = 1.0
    renormalise: bool = False


class NoisyLinear(Linear):
    """w·x + N(0, sigma²); the scored label is the noisy one, so the zero predictor scores 1 + sigma²/d.

    `renormalise` scales the labels back to variance d, as Garg's code does. Ridge with the noise-to-signal ratio is the oracle.
    """

    Parameters = NoisyLinearParameters

    @property
    def noise(self) -> float:
        return float(self.parameters.noise)

    def observe(
        self, truth: Truth, x: Tensor, generator: torch.Generator, noise: float, scale: float = 1.0
    ) -> Points:
        points = super().observe(truth, x, generator, noise, scale)
        if not self.parameters.renormalise:
            return points
        shrink = math.sqrt(self.x_dim / (self.x_dim + noise**2))
        return Points(points.x, shrink * points.y, points.mask)
