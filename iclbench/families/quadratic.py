"""Quadratic functions y = sum_j w_j x_j² / sqrt(3) (code of Garg et al. 2022)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.families.base import Truth
from iclbench.families.linear import Linear


class Quadratic(Linear):
    """Quadratic functions with w ~ N(0, I). The variance of y is d, since E[x⁴] = 3. The oracle is least squares on
    x²."""

    linear_in_x = False
    oracles = frozenset({"oracle-features"})

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        return torch.einsum("bnd,bd->bn", x.square(), truth["weights"]) / math.sqrt(3)

    def features(self, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N Dx"]:
        return x.square() / math.sqrt(3)
