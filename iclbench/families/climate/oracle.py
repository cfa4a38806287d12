"""The oracle of the synthetic climate: the exact posterior given the climate and the true kernel of the weather.

Related datasets are other samples of the weather. They give no information if the kernel is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.joint import JointGaussian
from iclbench.core.predictor import Oracle, State
from iclbench.core.settings import NoSettings
from iclbench.families.climate.climate import Climate
from iclbench.families.climate.weather import Weather, climate
from iclbench.families.family_predictor import FamilyPredictor


@dataclass(frozen=True)
class WeatherState(State):
    """The context, the kernel of the weather and the first step of the context patch, for every episode."""

    context: Points
    weather: Weather
    start: Int[Tensor, " B"]


class ClimateOracle(FamilyPredictor[NoSettings], Oracle):
    """The posterior of noisy temperatures given the context; raises `UsageError` for other families."""

    family_class, family_name = Climate, "climate"
    heads = ("gaussian",)
    family: Climate

    def condition(self, context: Points, related: Points | None = None) -> WeatherState:
        if self.truth is None:
            raise UsageError(
                "oracle-climate requires the weather; call informed(episodes.truth) first", code="missing-value"
            )
        weather = Weather(*(self.truth[name] for name in ("space", "time", "amplitude")))
        return WeatherState(context, weather, self.truth["start"][:, 0])

    def query(self, state: WeatherState, x: Float[Tensor, "B Q 4"]) -> JointGaussian:
        mean, covariance = self.posterior(state, x)
        return JointGaussian.from_tril(mean.to(x.dtype).unsqueeze(-1), torch.linalg.cholesky(covariance).to(x.dtype))

    def update(self, state: WeatherState, points: Points) -> WeatherState:
        return replace(state, context=state.context.append(points))

    def posterior(
        self, state: WeatherState, x: Float[Tensor, "B Q 4"]
    ) -> tuple[Float[Tensor, "B Q"], Float[Tensor, "B Q Q"]]:
        """Return the joint mean and covariance of the noisy, standardised temperatures at `x`, in float64 (Rasmussen
        and Williams 2006, equations 2.23 and 2.24). Masked points are ignored. Without points, the result is the
        prior."""
        scale, weather = self.family.scale.to(x.device), state.weather
        noise = self.family.parameters.noise**2
        context_x, target_x = (self.family.to_coordinates(t, state.start) for t in (state.context.x, x))
        valid = state.context.mask.double()
        gram = weather.covariance(context_x, context_x) * valid[:, :, None] * valid[:, None, :]
        # Masked points are independent of all other points.
        gram.diagonal(dim1=1, dim2=2).add_(torch.where(state.context.mask, noise, 1.0))
        cross = weather.covariance(context_x, target_x) * valid[:, :, None]
        y = state.context.y.squeeze(-1).double() * scale.y_std + scale.y_mean
        y = torch.where(state.context.mask, y - climate(context_x), 0.0)
        factor = torch.linalg.cholesky(gram)
        solved = torch.linalg.solve_triangular(factor, torch.cat([cross, y.unsqueeze(-1)], -1), upper=False)
        cross, y = solved[..., :-1], solved[..., -1:]
        mean = climate(target_x) + (cross.mT @ y).squeeze(-1)
        covariance = weather.covariance(target_x, target_x) - cross.mT @ cross
        # Rounding errors can make the variance of the field negative if a target is close to context points.
        covariance.diagonal(dim1=1, dim2=2).clamp_(min=0).add_(noise)
        return (mean - scale.y_mean) / scale.y_std, covariance / scale.y_std**2
