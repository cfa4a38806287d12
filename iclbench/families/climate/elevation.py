"""The elevation map of the synthetic climate, a stylised central Europe.

The map is a plain of 200 m plus ridges minus troughs. A ridge or trough is a segment with a Gaussian profile,

    height exp(-d² / (2 width²)),   d: distance from the segment in km.

Valleys cut through the ridges: the sum of the ridges is multiplied by 1 + 0.3 sin(2 pi e / 160) sin(2 pi n / 130),
where e and n are the distances in km to the east and north of 42 N, 8 E. Cells with negative heights are sea. The
segments approximate the Alps, the Carpathians and the other ranges and seas of the region. Heights are similar to
averages over half-degree cells (at most 2.9 km).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.families.climate.region import KM_PER_LATITUDE, KM_PER_LONGITUDE, SOUTH, WEST, latitudes, longitudes

# Height of the plain in metres.
PLAIN = 200.0
# Start and end of each segment as (latitude, longitude), height in metres and width in kilometres.
_RIDGES = (
    ((44.2, 7.0), (46.0, 7.5), 1600.0, 65.0),  # western Alps
    ((46.2, 8.0), (47.1, 13.0), 1900.0, 60.0),  # central Alps
    ((47.1, 13.5), (47.5, 15.5), 1000.0, 55.0),  # eastern Alps
    ((44.5, 9.0), (42.6, 13.3), 900.0, 40.0),  # Apennines
    ((45.6, 14.8), (42.6, 20.0), 1200.0, 60.0),  # Dinaric Alps
    ((42.0, 21.5), (42.1, 24.5), 1300.0, 60.0),  # Rila and Rhodope
    ((42.9, 23.0), (42.8, 26.0), 600.0, 35.0),  # Balkan
    ((49.3, 18.6), (48.9, 21.5), 900.0, 55.0),  # western Carpathians
    ((48.5, 22.8), (47.2, 25.3), 900.0, 50.0),  # eastern Carpathians
    ((45.6, 25.5), (45.4, 22.6), 1300.0, 50.0),  # southern Carpathians
    ((46.5, 22.9), (46.7, 23.3), 700.0, 50.0),  # Apuseni
    ((50.0, 12.4), (48.8, 13.8), 700.0, 45.0),  # Bohemian Forest
    ((50.7, 15.2), (50.2, 16.9), 700.0, 40.0),  # Sudetes
)
_TROUGHS = (
    ((45.3, 13.0), (42.2, 16.6), 1100.0, 65.0),  # Adriatic
    ((43.9, 8.2), (42.0, 10.6), 2000.0, 60.0),  # Ligurian Sea
    ((45.0, 30.2), (42.0, 29.0), 2500.0, 90.0),  # Black Sea
)


def embedded_elevation() -> Float[Tensor, "22 40"]:
    """Return the elevation in metres at the cell centres of the region, from south to north and west to east; NaN for
    sea."""
    north = KM_PER_LATITUDE * (latitudes() - SOUTH).unsqueeze(1)
    east = KM_PER_LONGITUDE * (longitudes() - WEST).unsqueeze(0)
    ridges, troughs = (
        torch.stack([_profile(*segment, north, east) for segment in segments]).sum(0)
        for segments in (_RIDGES, _TROUGHS)
    )
    valleys = 1 + 0.3 * torch.sin(2 * torch.pi * east / 160) * torch.sin(2 * torch.pi * north / 130)
    height = PLAIN + ridges * valleys - troughs
    return height.masked_fill(height < 0, torch.nan)


def _profile(
    start: tuple[float, float],
    end: tuple[float, float],
    height: float,
    width: float,
    north: Float[Tensor, "22 1"],
    east: Float[Tensor, "1 40"],
) -> Float[Tensor, "22 40"]:
    """Return the profile of one segment at the cell centres."""
    (latitude, longitude), (end_latitude, end_longitude) = start, end
    north, east = north - KM_PER_LATITUDE * (latitude - SOUTH), east - KM_PER_LONGITUDE * (longitude - WEST)
    along_north = KM_PER_LATITUDE * (end_latitude - latitude)
    along_east = KM_PER_LONGITUDE * (end_longitude - longitude)
    fraction = ((north * along_north + east * along_east) / (along_north**2 + along_east**2)).clamp(0, 1)
    squared_distance = (north - fraction * along_north).square() + (east - fraction * along_east).square()
    return height * torch.exp(-0.5 * squared_distance / width**2)
