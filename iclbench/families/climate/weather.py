"""The synthetic temperature: a fixed climate plus weather, a Gaussian field in space and time.

The temperature in degrees Celsius, with t in hours since the beginning of the year (UTC) and elevation z in metres, is

    14 - 0.7 (latitude - 47.5)                      at sea level, lower in the north
    - 11 cos(2 pi (t / 24 - 20) / 365)              yearly cycle, coldest on 21 January
    + 4 cos(2 pi (t + longitude / 15 - 15) / 24)    daily cycle, warmest three hours after local solar noon
    - 6.5 z / 1000                                  the lapse rate of the standard atmosphere
    + f(t, latitude, longitude) + noise

f has mean 0 and the kernel amplitude² exp(-dt² / (2 time²)) exp(-(dn² + de²) / (2 space²)), where dn and de are
distances to the north and east in kilometres (for all latitudes, with the length of a degree of longitude at 47.5 N).
On a grid, the kernel is a product of three kernels with one coordinate each, so multiplications by three small Cholesky
factors give an exact sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.records import TensorRecord
from iclbench.families.climate.region import KM_PER_LATITUDE, KM_PER_LONGITUDE, SPACING, STEP_HOURS

# Added to the diagonal of the kernel of each coordinate, whose smallest eigenvalues are below rounding errors. With
# default parameters, the variance of the noise is more than a million times larger.
_JITTER = 1e-9
_DAYS = 365


def climate(coordinates: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B"]:
    """Return the expected temperature in degrees Celsius, given hours, latitude, longitude and elevation."""
    hours, latitude, longitude, elevation = coordinates.unbind(-1)
    yearly_cycle = -11 * torch.cos(2 * math.pi * (hours / 24 - 20) / _DAYS)
    daily_cycle = 4 * torch.cos(2 * math.pi * (hours + longitude / 15 - 15) / 24)
    return 14 - 0.7 * (latitude - 47.5) + yearly_cycle + daily_cycle - 6.5e-3 * elevation


@dataclass(frozen=True)
class Weather(TensorRecord):
    """The kernel of f in every episode, in float64.

    Attributes:
        space: lengthscale in kilometres.
        time: lengthscale in hours.
        amplitude: standard deviation in kelvin.
    """

    space: Float[Tensor, " B"]
    time: Float[Tensor, " B"]
    amplitude: Float[Tensor, " B"]

    def draw(self, normals: Float[Tensor, "B S T R C"]) -> Float[Tensor, "B S T R C"]:
        """Transform standard normal numbers into S independent fields per episode, at T times, R latitudes and C
        longitudes of adjacent cells."""
        *_, times, rows, columns = normals.shape
        time = _factor(STEP_HOURS * torch.arange(times, device=normals.device) / self.time.unsqueeze(1))
        north, east = (
            _factor(SPACING * length * torch.arange(count, device=normals.device) / self.space.unsqueeze(1))
            for length, count in ((KM_PER_LATITUDE, rows), (KM_PER_LONGITUDE, columns))
        )
        fields = torch.einsum("bsuqd,bcd->bsuqc", normals, east)
        fields = torch.einsum("bsuqc,brq->bsurc", fields, north)
        fields = torch.einsum("bsurc,btu->bstrc", fields, time)
        return self.amplitude.view(-1, 1, 1, 1, 1) * fields

    def covariance(self, a: Float[Tensor, "B N 4"], b: Float[Tensor, "B M 4"]) -> Float[Tensor, "B N M"]:
        """Return the covariance of f between two sets of coordinates: hours, latitude, longitude and elevation, which
        is not used."""
        lengthscales = torch.stack([self.time, self.space / KM_PER_LATITUDE, self.space / KM_PER_LONGITUDE], -1)
        lengthscales = lengthscales.unsqueeze(1)
        a, b = a[..., :3] / lengthscales, b[..., :3] / lengthscales
        squared = sum(
            (p.unsqueeze(2) - q.unsqueeze(1)).square() for p, q in zip(a.unbind(-1), b.unbind(-1), strict=True)
        )
        return self.amplitude.square().view(-1, 1, 1) * torch.exp(-0.5 * squared)


def _factor(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N N"]:
    """Return the Cholesky factors of exp(-(x - x')² / 2)."""
    kernel = torch.exp(-0.5 * (x.unsqueeze(2) - x.unsqueeze(1)).square())
    kernel.diagonal(dim1=1, dim2=2).add_(_JITTER)
    return torch.linalg.cholesky(kernel)
