"""Small files with the names, layout and attributes of WFDE5 in the Climate Data Store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

YEAR = 2019
# The region and a margin of two cells. The official files cover the world.
LATITUDES = np.arange(41.25, 54, 0.5)
LONGITUDES = np.arange(7.25, 29, 0.5)
_FILL = np.float32(1e20)


def elevation() -> np.ndarray:
    """Return the elevation in metres. The south-west is sea (NaN)."""
    height = 200 + 40 * (LATITUDES - 42)[:, None] ** 2 + 10 * (LONGITUDES - 8)
    return np.where((LATITUDES[:, None] < 45) & (LONGITUDES < 12), np.nan, height)


def temperatures(month: int, hours: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and temperatures that differ between cells and are missing at sea."""
    start = np.datetime64(f"{YEAR}-{month:02}", "M")
    times = np.arange(start.astype("datetime64[h]"), (start + 1).astype("datetime64[h]"), hours)
    hour = (times - np.datetime64(f"{YEAR}-01-01T00", "h")).astype(float)[:, None, None]
    kelvin = 273 + hour / 1000 + 5 * np.sin(hour / 24 * 2 * np.pi) + LATITUDES[:, None] / 10 + LONGITUDES / 100
    return times, np.where(np.isnan(elevation()), np.nan, kelvin)


def tair(month: int, hours: int = 6) -> xr.Dataset:
    times, values = temperatures(month, hours)
    attributes = {"long_name": "Near-Surface Air Temperature", "standard_name": "air_temperature", "units": "K"}
    return _dataset("Tair", ("time", "lat", "lon"), values, attributes).assign_coords(time=times.astype("M8[ns]"))


def asurf() -> xr.Dataset:
    attributes = {"long_name": "Grid-point altitude", "standard_name": "surface_altitude", "units": "m"}
    return _dataset("ASurf", ("lat", "lon"), elevation(), attributes)


def write(folder: Path, months: int = 12) -> Path:
    """Write the files of a year with a value every six hours."""
    folder.mkdir(parents=True, exist_ok=True)
    save(asurf(), folder / "ASurf_WFDE5_CRU_v2.1.nc")
    for month in range(1, months + 1):
        save(tair(month), tair_path(folder, month))
    return folder


def tair_path(folder: Path, month: int) -> Path:
    return folder / f"Tair_WFDE5_CRU_{YEAR}{month:02}_v2.1.nc"


def save(dataset: xr.Dataset, path: Path) -> None:
    name = next(iter(dataset.data_vars))
    encoding: dict = {name: {"dtype": "float32", "_FillValue": _FILL}}
    if "time" in dataset.dims:
        encoding["time"] = {"units": "hours since 1900-01-01", "calendar": "proleptic_gregorian", "dtype": "int64"}
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding)


def _dataset(name: str, dims: tuple[str, ...], values: np.ndarray, attributes: dict[str, str]) -> xr.Dataset:
    dataset = xr.Dataset({name: (dims, values, attributes)}, {"lat": LATITUDES, "lon": LONGITUDES})
    for axis, word in (("lat", "latitude"), ("lon", "longitude")):
        unit = "degrees_north" if axis == "lat" else "degrees_east"
        dataset[axis].attrs.update(standard_name=word, long_name=word.capitalize(), units=unit)
    dataset.attrs.update(title="WATCH Forcing Data methodology applied to ERA5 data", Conventions="CF-1.7")
    return dataset
