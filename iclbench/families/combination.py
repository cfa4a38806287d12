"""Linear combinations of five fixed features (CoQE, regression part): (|x1|, x2², x3³, cos(pi x4), exp(0.2 x5))."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from iclbench.families.base import FunctionFamily, FunctionParameters, Truth
from iclbench.families.sampling import normal


class CombinationParameters(FunctionParameters):
    """Parameters of combinations; `dim` is the number of inputs, of which the first five are used."""

    dim: Annotated[int, Field(ge=5, le=1_000_000)] = 5


class Combination(FunctionFamily):
    """Functions w·phi(x) with w ~ N(0, I_5); input dimensions after the fifth have no influence."""

    Parameters = CombinationParameters
    oracles = frozenset({"oracle-features"})

    @property
    def normaliser(self) -> float:
        """E|phi(x)|² for x ~ N(0, I): 1 + 3 + 15 + (1 + exp(-2 pi²))/2 + exp(0.08) = 20.583."""
        return 1 + 3 + 15 + 0.5 * (1 + math.exp(-2 * math.pi**2)) + math.exp(0.08)

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        return {"weights": normal((episodes, 5), generator)}

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        return torch.einsum("bnf,bf->bn", features(x), truth["weights"])

    def features(self, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N 5"]:
        return features(x)

    def feature_directions(self) -> Float[Tensor, "5 Dx"]:
        return torch.eye(5, self.x_dim)


def features(x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape 5"]:
    """Return the five features phi(x), which are the same for all functions of the family."""
    x1, x2, x3, x4, x5 = x[..., :5].unbind(-1)
    return torch.stack([x1.abs(), x2**2, x3**3, torch.cos(math.pi * x4), torch.exp(0.2 * x5)], -1)
