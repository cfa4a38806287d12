"""Linear functions y = w·x: isotropic, sparse, skewed and noisy (Garg et al. 2022; Grazzi et al. 2024, appendix
A.1.3)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.settings import NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.families.base import FunctionFamily, FunctionParameters, Truth
from iclbench.families.sampling import normal, skewed_inputs
from iclbench.families.task_pool import PoolParameters, TaskPool


class Linear(FunctionFamily):
    """Functions w·x with w ~ N(0, I) and x ~ N(0, I), so y has variance d. Least squares is Bayes-optimal."""

    linear_in_x = True
    oracles = frozenset({"least-squares", "ridge"})

    @property
    def normaliser(self) -> float:
        return float(self.x_dim)

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        return {"weights": normal((episodes, self.x_dim), generator)}

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        return torch.einsum("bnd,bd->bn", x, truth["weights"])

    def features(self, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N Dx"]:
        return x

    def feature_directions(self) -> Float[Tensor, "Dx Dx"]:
        return torch.eye(self.x_dim)


class PooledLinear(TaskPool, Linear):
    """Functions w·x as in `Linear`, with new weights in each episode or with weights from a pool."""

    oracles = frozenset({"least-squares", "ridge"})


class SparseLinearParameters(FunctionParameters):
    """Parameters of sparse linear functions; `sparsity` is the number of weights that are not 0."""

    sparsity: PositiveInt = 3

    @model_validator(mode="after")
    def _check_sparsity(self) -> SparseLinearParameters:
        if self.sparsity > self.dim:
            raise ValueError(f"expected sparsity of at most dim = {self.dim}, got {self.sparsity}")
        return self


class SparseLinear(Linear):
    """Linear functions in which only `sparsity` random coordinates of w, among the dimensions in use, are not 0. The
    variance of y is `sparsity`."""

    Parameters = SparseLinearParameters
    oracles = frozenset({"oracle-supports"})

    @property
    def normaliser(self) -> float:
        return float(self.parameters.sparsity)

    @property
    def weight_variance(self) -> float:
        """Variance of a weight, averaged over supports. Ridge regression with this variance is the best linear
        estimator; the Bayes-optimal estimator is not linear."""
        return self.parameters.sparsity / self.x_dim

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        weights = normal((episodes, self.x_dim), generator)
        score = torch.rand((episodes, self.x_dim), generator=generator, device=generator.device)
        is_active = torch.arange(self.x_dim, device=generator.device) < (active_dims or self.x_dim)
        rank = score.masked_fill(~is_active, 2.0).argsort(1).argsort(1)
        support = (rank < self.parameters.sparsity) & is_active
        return {"weights": weights * support, "support": support}


class SkewedLinearParameters(FunctionParameters):
    """Parameters of linear functions with skewed inputs.

    Attributes:
        exponent: exponent of the eigenvalues 1/i^exponent of the covariance of x.
        rotation: whether the basis is random per episode, random per call (`batch`), or fixed.
    """

    exponent: PositiveFloat = 2.0
    rotation: Literal["episode", "batch", "fixed"] = "episode"


class SkewedLinear(Linear):
    """Linear functions of skewed inputs. In a random basis, the covariance of x has eigenvalues proportional to
    1/i^exponent with sum d. The variance of y is d.

    In the main text of the paper, the eigenvalues are 1/i²; its appendix scales x by 1/i², which is `exponent = 4`.
    `rotation` selects one basis per episode (as in the paper), per call (as in its training code) or for all episodes
    (as in its evaluation code).
    """

    Parameters = SkewedLinearParameters
    oracles = frozenset({"least-squares", "ridge"})

    def inputs(self, episodes: int, points: int, generator: torch.Generator) -> Float[Tensor, "B N Dx"]:
        z = normal((episodes, points, self.x_dim), generator)
        return skewed_inputs(z, generator, self.parameters.exponent, self.parameters.rotation)


class NoisyLinearParameters(PoolParameters):
    """Parameters of linear functions with label noise.

    Attributes:
        noise: standard deviation sigma of the label noise.
        renormalise: whether noisy labels are scaled to variance d.
    """

    noise: NonNegativeFloat = 1.0
    renormalise: bool = False


class NoisyLinear(TaskPool, Linear):
    """Linear functions with label noise, y = w·x + N(0, sigma²). Scores use the noisy labels, so the zero predictor
    scores 1 + sigma²/d.

    `renormalise` scales the noisy labels to variance d, so that the zero predictor scores 1. Garg's code divides by the
    standard deviation of the batch; this family divides by the standard deviation of the distribution, so that episodes
    do not depend on each other. Ridge with the noise-to-signal ratio as its penalty is the oracle.
    """

    Parameters = NoisyLinearParameters
    oracles = frozenset({"ridge"})

    @property
    def noise(self) -> float:
        return float(self.parameters.noise)

    def label_factor(self, noise: float) -> float:
        return math.sqrt(self.x_dim / (self.x_dim + noise**2)) if self.parameters.renormalise else 1.0

    def observe(
        self, truth: Truth, x: Float[Tensor, "B N Dx"], generator: torch.Generator, noise: float, scale: float = 1.0
    ) -> Points:
        points = super().observe(truth, x, generator, noise, scale)
        if not self.parameters.renormalise:
            return points
        return Points(points.x, self.label_factor(noise) * points.y, points.mask)
