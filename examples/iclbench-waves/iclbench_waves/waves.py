"""Waves in a random direction: f(x) = a sin(w u·x) + b cos(w u·x), a generalisation of the sinusoids of Finn et al.
2017 to any dimension."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.settings import PositiveFloat
from iclbench.families.base import FunctionFamily, FunctionParameters, Truth
from iclbench.families.sampling import normal


class WavesParameters(FunctionParameters):
    """The parameters of the family: `dim`, and the range of the angular frequency w, which is uniformly distributed."""

    slowest: PositiveFloat = 1.0
    fastest: PositiveFloat = 3.0


class Waves(FunctionFamily):
    """Waves with a, b ~ N(0, 1) and u uniform on the sphere, so that every value has variance 1.

    Raises:
        UsageError: if `slowest` is above `fastest`.
    """

    Parameters = WavesParameters

    def __init__(self, parameters: WavesParameters, data_dir: object = None) -> None:
        if parameters.slowest > parameters.fastest:
            raise UsageError(
                f"waves: slowest ({parameters.slowest:g}) is above fastest ({parameters.fastest:g}); exchange them"
            )
        super().__init__(parameters, data_dir)

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        p = self.parameters
        direction = normal((episodes, self.x_dim), generator)
        share = torch.rand(episodes, generator=generator, device=generator.device)
        return {
            "direction": direction / direction.norm(dim=1, keepdim=True),
            "frequency": p.slowest + (p.fastest - p.slowest) * share,
            "weights": normal((episodes, 2), generator),
        }

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        angle = truth["frequency"].unsqueeze(1) * torch.einsum("bnd,bd->bn", x, truth["direction"])
        a, b = truth["weights"].unsqueeze(-1).unbind(1)
        return a * angle.sin() + b * angle.cos()
