"""The region of the climate families, its grid, and the standardisation of inputs and outputs.

The region is 42 to 53 N and 8 to 28 E (ICICL-TNP, section 5.3) in cells of half a degree with the same centres as
WFDE5: 42.25, 42.75, ..., 52.75 N and 8.25, ..., 27.75 E. Times are counted in steps of six hours from 1 January, 00
UTC.
"""

from __future__ import annotations

import math
from calendar import isleap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.records import TensorRecord

SOUTH, WEST = 42.0, 8.0
ROWS, COLUMNS = 22, 40
SPACING = 0.5
STEP_HOURS = 6
YEAR = 2019
# Kilometres per degree of latitude, and per degree of longitude at 47.5 N, the middle of the region.
KM_PER_LATITUDE = 111.2
KM_PER_LONGITUDE = KM_PER_LATITUDE * math.cos(math.radians(47.5))


def latitudes() -> Float[Tensor, "22"]:
    """Return the latitudes of the cell centres in degrees, from south to north."""
    return SOUTH + SPACING * (torch.arange(ROWS, dtype=torch.float64) + 0.5)


def longitudes() -> Float[Tensor, "40"]:
    """Return the longitudes of the cell centres in degrees, from west to east."""
    return WEST + SPACING * (torch.arange(COLUMNS, dtype=torch.float64) + 0.5)


def steps_until(month: int, year: int) -> int:
    """Return the number of six-hour steps from the beginning of a year to the beginning of a month. Month 13 begins at
    the end of the year."""
    days = (31, 28 + isleap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return sum(days[: month - 1]) * 24 // STEP_HOURS


@dataclass(frozen=True)
class Scale(TensorRecord):
    """Means and standard deviations of inputs and outputs.

    Attributes:
        x_mean, x_std: moments of hours, latitude, longitude (degrees) and elevation (metres).
        y_mean, y_std: moments of temperatures.
    """

    x_mean: Float[Tensor, "4"]
    x_std: Float[Tensor, "4"]
    y_mean: Float[Tensor, ""]
    y_std: Float[Tensor, ""]

    @classmethod
    def of(cls, steps: int, elevation: Float[Tensor, "22 40"], y_mean: float, y_std: float) -> Scale:
        """Compute the moments of the first `steps` six-hour times (a single time is not scaled), of the coordinates of
        all cells, and of the elevation of cells on land."""
        hours = STEP_HOURS * torch.arange(steps, dtype=torch.float64)
        inputs = (hours, latitudes(), longitudes(), elevation[elevation.isfinite()].double())
        std = torch.stack([t.std(correction=0) for t in inputs])
        outputs = torch.tensor([y_mean, y_std], dtype=torch.float64)
        return cls(torch.stack([t.mean() for t in inputs]), torch.where(std > 0, std, 1.0), *outputs)

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Scale:
        """Create the scale from the result of `values`."""
        return cls(**{name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()})

    def values(self) -> dict[str, Any]:
        """Return the scale as plain numbers."""
        return {name: tensor.tolist() for name, tensor in self.tensors().items()}

    def to_inputs(self, coordinates: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
        """Convert hours, degrees and metres to standardised inputs."""
        return (coordinates - self.x_mean) / self.x_std

    def to_coordinates(self, x: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
        """Convert standardised inputs to hours, degrees and metres, in float64."""
        return x.double() * self.x_std + self.x_mean
