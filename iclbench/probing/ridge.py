"""Ridge regression for probes. Generalised cross-validation chooses the penalty."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

# Candidates for the penalty, as multiples of the mean squared singular value of the centred inputs.
PENALTIES = torch.logspace(-10, 4, 57, dtype=torch.float64)


@dataclass(frozen=True)
class LinearMap:
    """The affine map y = (x - centre) weights + intercept."""

    centre: Float[Tensor, " D"]
    weights: Float[Tensor, "D K"]
    intercept: Float[Tensor, " K"]

    def __call__(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        return (x - self.centre) @ self.weights + self.intercept


def fit_ridge(x: Float[Tensor, "N D"], y: Num[Tensor, "N K"]) -> LinearMap:
    """Fit a ridge regression in float64. The intercept is not penalised.

    All outputs have the same penalty: the one in `PENALTIES` that minimises the generalised cross-validation error
    (Golub, Heath and Wahba 1979, equation 1.4).
    """
    x, y = x.double(), y.double()
    centre, intercept = x.mean(0), y.mean(0)
    u, s, vt = torch.linalg.svd(x - centre, full_matrices=False)
    projected, squares = u.T @ (y - intercept), s.square()
    penalties = PENALTIES * squares.mean().clamp_min(torch.finfo(torch.float64).tiny)
    shrinkage = squares / (squares + penalties.unsqueeze(1))
    # The part of y outside the span of x, and the part within it that the penalty removes.
    outside_squares = ((y - intercept).square().sum() - projected.square().sum()).clamp_min(0)
    residual = outside_squares + (1 - shrinkage).square() @ projected.square().sum(1)
    degrees_of_freedom = (len(x) - 1 - shrinkage.sum(1)).clamp_min(1e-9)
    penalty = penalties[(residual / degrees_of_freedom.square()).argmin()]
    return LinearMap(centre, vt.T @ ((s / (squares + penalty)).unsqueeze(1) * projected), intercept)
