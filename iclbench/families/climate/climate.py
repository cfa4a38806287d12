"""Synthetic temperatures over central Europe, with related datasets that share the kernel of the weather.

Use this family if the files of `iclbench.families.climate.era5` are not available; the two families have the same
inputs, patches and sizes. A temperature is the sum of a fixed climate, which depends on a built-in elevation map, and
weather, a Gaussian field whose kernel is drawn per episode (`iclbench.families.climate.weather`). Context and targets
are points of one field, and every related dataset is from another field with the same kernel. Related datasets
therefore give information only about the parameters of the kernel: the lengthscales in space and time and the
amplitude, which are log-uniform. The patches of an episode are so distant in time that the correlation between their
fields would be less than 1e-6, so the fields are drawn independently. All temperatures, including the targets, are
noisy.

Frozen prompts are stratified by the three parameters of the kernel and by context size; training episodes are
independent. Errors are not divided by a normaliser, since temperatures are standardised by the mean and standard
deviation of noiseless temperatures over land from January to June.
"""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes
from iclbench.families.climate.elevation import embedded_elevation
from iclbench.families.climate.patches import GridIndices, Patches, PatchParameters
from iclbench.families.climate.region import STEP_HOURS, YEAR, latitudes, longitudes, steps_until
from iclbench.families.climate.weather import Weather, climate
from iclbench.families.request import Request

# The largest correlation between the fields of two patches of an episode.
MAX_CORRELATION = 1e-6

_Space = Annotated[float, Field(ge=10, le=10_000)]
_Time = Annotated[float, Field(ge=1, le=1000)]
_Amplitude = Annotated[float, Field(ge=0.01, le=100)]


class ClimateParameters(PatchParameters):
    """Parameters of the patches, ranges of the log-uniform parameters of the weather kernel, and the noise.

    Attributes:
        space: range of the lengthscale in kilometres.
        time: range of the lengthscale in hours.
        amplitude: range of the standard deviation of the weather in kelvin.
        noise: standard deviation of the noise in kelvin.
    """

    space: tuple[_Space, _Space] = Field(default=(100.0, 600.0), strict=False)
    time: tuple[_Time, _Time] = Field(default=(6.0, 48.0), strict=False)
    amplitude: tuple[_Amplitude, _Amplitude] = Field(default=(1.0, 4.0), strict=False)
    noise: Annotated[float, Field(ge=0.01, le=100)] = 0.3

    @model_validator(mode="after")
    def _check_ranges(self) -> ClimateParameters:
        for name in ("space", "time", "amplitude"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller number first, got {low}, {high}")
        if self.max_related * (2 * self.min_separation - 1) > steps_until(7, YEAR) - self.times:
            raise ValueError(
                f"max_related: patches with independent weather are at least {STEP_HOURS * self.min_separation} hours "
                f"apart, so half a year may be too short for {self.max_related} related patches; lower max_related or "
                "time"
            )
        return self

    @property
    def min_separation(self) -> int:
        """Smallest number of steps between the beginnings of two patches with independent weather."""
        hours = math.sqrt(-2 * math.log(MAX_CORRELATION)) * self.time[1]
        return self.times - 1 + math.ceil(hours / STEP_HOURS)


class Climate(Patches):
    """Patches of the synthetic temperature; the kernel of the weather is drawn per episode."""

    Parameters = ClimateParameters
    oracles = frozenset({"oracle-climate"})
    parameters: ClimateParameters

    @cached_property
    def elevation(self) -> Float[Tensor, "22 40"]:
        return embedded_elevation()

    @property
    def min_separation(self) -> int:
        return self.parameters.min_separation

    @cached_property
    def y_moments(self) -> tuple[float, float]:
        """Mean and standard deviation of noiseless temperatures on land. The variance of the weather is its mean over
        the range of amplitudes."""
        hours = STEP_HOURS * torch.arange(steps_until(7, self.year), dtype=torch.float64)
        grid = (hours[:, None, None], latitudes()[:, None], longitudes(), self.elevation)
        expected = climate(torch.stack(torch.broadcast_tensors(*grid), -1))[:, self.elevation.isfinite()]
        low, high = self.parameters.amplitude
        # The expected square of a log-uniform amplitude.
        weather_variance = (high**2 - low**2) / (2 * math.log(high / low)) if high > low else low**2
        return float(expected.mean()), math.sqrt(float(expected.var(correction=0)) + weather_variance)

    def sample_prompts(self, request: Request) -> Episodes:
        """Draw prompts that are stratified by the parameters of the weather kernel and by context size."""
        stratified_family = copy(self)
        stratified_family.stratified = True
        return stratified_family.sample_all_related(request)

    def temperatures(
        self, grid_indices: GridIndices, coordinates: Float[Tensor, "B S P 4"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B S P"], dict[str, Tensor]]:
        parameters = self.parameters
        ranges = zip(
            (parameters.space, parameters.time, parameters.amplitude),
            self.uniform(3, len(coordinates), generator),
            strict=True,
        )
        weather = Weather(*(low * (high / low) ** u for (low, high), u in ranges))
        sizes = (*coordinates.shape[:2], parameters.times, parameters.cells, parameters.cells)
        normals, noise = torch.randn((2, *sizes), generator=generator, device=coordinates.device, dtype=torch.float64)
        field = weather.draw(normals) + parameters.noise * noise
        return climate(coordinates) + field.flatten(2), weather.tensors()
