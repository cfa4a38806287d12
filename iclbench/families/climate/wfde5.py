"""Temperatures of WFDE5 (Cucchi et al. 2020): ERA5 on a grid of half a degree, corrected by observations, over land.

The Climate Data Store offers them as netCDF, one file per month, `Tair_WFDE5_CRU_201901_v2.1.nc` with the variable
`Tair` (time, lat, lon) in K for every hour, and one file with the elevation of the cells, `ASurf_WFDE5_CRU_v2.1.nc`
with `ASurf` (lat, lon) in m. Both are missing over sea. Files of the whole world and of an area around the region are
both read, with latitudes in either order, and so are files that hold every sixth hour only.

Reading takes a while, so the region is cached as one compact file (`iclbench.families.images.array_cache`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Float64

from iclbench.core import limits
from iclbench.core.errors import DataError, said
from iclbench.families.climate.region import SPACING, STEP_HOURS, latitudes, longitudes, steps_until
from iclbench.families.images.array_cache import cached

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

_HOME = (
    "WFDE5 in the Climate Data Store (doi.org/10.24381/cds.20d54e34): near-surface air temperature and grid-point "
    "altitude, reference data set CRU"
)
# Kelvin that air near the ground has somewhere on Earth.
_COLDEST, _HOTTEST = 150.0, 350.0
# What is larger is missing, whether or not a file says so: the fill value of WFDE5 is 1e20.
_FILL = 1e19


def load_region(folder: Path, year: int) -> Float32[np.ndarray, "fields 22 40"]:
    """Elevation in metres, and behind it the temperatures in K at every sixth hour of the year; NaN: sea.

    Raises:
        DataError: a file is not there, cannot be read, or does not hold what it should; or xarray is not installed.
    """
    files = _files(folder, year)
    digest = hashlib.sha256()
    for path in files:
        try:
            with limits.opened(path) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
    return cached(f"wfde5-{year}-{digest.hexdigest()[:12]}", folder, lambda: _read(files, year))


def _files(folder: Path, year: int) -> list[Path]:
    """The file of the elevation, and those of the twelve months."""
    patterns = ["ASurf_WFDE5_CRU_v*.nc", *(f"Tair_WFDE5_CRU_{year}{month:02}_v*.nc" for month in range(1, 13))]
    matches = [sorted(folder.glob(pattern)) for pattern in patterns]
    missing = [pattern.replace("*", "2.1") for pattern, paths in zip(patterns, matches, strict=True) if not paths]
    if missing:
        more_files = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"{folder} lacks {missing[0]}{more_files}: the elevation and all months of {year} are needed, of {_HOME}; "
            "put "
            "them there, or point --data-dir or ICLBENCH_DATA at the folder above, or -o task.path at the folder itself"
        )
    if duplicates := next((paths for paths in matches if len(paths) > 1), None):
        raise DataError(f"{folder} holds {' and '.join(path.name for path in duplicates)}; leave one of them there")
    return [paths[0] for paths in matches]


def _read(files: list[Path], year: int) -> Float32[np.ndarray, "fields 22 40"]:
    for package in ("xarray", "h5netcdf", "h5py"):
        if find_spec(package) is None:
            raise DataError(f"netCDF is read by {package}, which is not installed; pip install 'iclbench[climate]'")
    elevation, *months = files
    with _variable(elevation, "ASurf", ("lat", "lon"), "m") as array:
        height = _region(array, elevation)
    parts = [_month(path, year, month) for month, path in enumerate(months, 1)]
    temperature = np.concatenate(parts)
    valid = np.isfinite(temperature)
    gaps = np.argwhere(~valid & valid.any(0))
    if len(gaps):
        step, row, column = gaps[0]
        month = next(month for month in range(1, 13) if step < steps_until(month + 1, year))
        raise DataError(
            f"{months[month - 1]}: no temperature at {_time(year, int(step))}, {latitudes()[row]:g} N, "
            f"{longitudes()[column]:g} E ({len(gaps):,} gaps in all), where there are others of the year; download it "
            "again"
        )
    land = np.isfinite(height) & valid[0]
    if not land.any():
        raise DataError(
            f"{elevation.parent}: no cell of the region has elevation and temperatures; download them again"
        )
    return np.where(land, np.concatenate([height[None], temperature]), np.nan).astype(np.float32)


def _month(path: Path, year: int, month: int) -> Float64[np.ndarray, "steps 22 40"]:
    """Every sixth hour of a month."""
    first, end = (steps_until(m, year) for m in (month, month + 1))
    times = np.datetime64(f"{year}-01-01T00", "h") + STEP_HOURS * np.arange(first, end)
    with _variable(path, "Tair", ("time", "lat", "lon"), "K") as array:
        file_times = array["time"].values
        steps = np.flatnonzero(np.isin(file_times, times)) if file_times.dtype.kind == "M" else np.empty(0, int)
        if not np.array_equal(file_times[steps], times):
            raise DataError(
                f"{path}: not all of the times {_time(year, first)}, {_time(year, first + 1)}, ..., "
                f"{_time(year, end - 1)} in their order; download the whole month"
            )
        values = _region(array, path)[steps]
    kelvin = values[np.isfinite(values)]
    if kelvin.size and ((least := kelvin.min()) < _COLDEST) | ((most := kelvin.max()) > _HOTTEST):
        raise DataError(f"{path}: temperatures from {least:g} to {most:g}, which are not in K; convert them")
    return values


def _time(year: int, step: int) -> str:
    return str(np.datetime64(f"{year}-01-01T00", "h") + STEP_HOURS * step)


@contextmanager
def _variable(path: Path, name: str, dims: tuple[str, ...], unit: str) -> Iterator[DataArray]:
    """A variable of a file, its values not yet read."""
    import h5py
    import xarray

    try:
        # Where one of these fails, h5netcdf would too, and print a traceback when its half-made object is deleted.
        with h5py.File(path) as file:
            file.attrs.get("_nc3_strict")
        # Without indices nothing but attributes is read, however long an axis says it is.
        with xarray.open_dataset(path, engine="h5netcdf", create_default_indexes=False) as dataset:
            yield _checked(dataset, path, name, dims, unit)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{path} cannot be read as netCDF ({said(error)}); download it again") from None


def _checked(dataset: Dataset, path: Path, name: str, dims: tuple[str, ...], unit: str) -> DataArray:
    if name not in dataset.data_vars:
        available = ", ".join(map(str, dataset.data_vars)) or "none"
        raise DataError(f"{path}: no variable '{name}' (there is {available}); expected the files of {_HOME}")
    array = dataset[name]
    if set(array.dims) != set(dims) or any(dim not in array.coords for dim in dims):
        available, expected = (", ".join(map(str, axes)) for axes in (array.dims, dims))
        raise DataError(f"{path}: '{name}' is over ({available}), expected ({expected}), each with coordinates")
    if array.attrs.get("units") != unit:
        raise DataError(f"{path}: '{name}' is in '{array.attrs.get('units', '')}', expected '{unit}'; convert it")
    for dim in dims:
        limits.check(8 * array.sizes[dim], f"{path}: its axis '{dim}' has")
    return array.transpose(*dims)


def _region(array: DataArray, path: Path) -> Float64[np.ndarray, "*steps 22 40"]:
    """The cells of the region, south to north and west to east; NaN: missing."""
    rows = _cells(array["lat"].values, latitudes().numpy(), "latitude", path)
    columns = _cells(array["lon"].values, longitudes().numpy(), "longitude", path)
    # As contiguous parts of the file, then in our order.
    south, west = rows.min(), columns.min()
    region = array.isel(lat=slice(south, rows.max() + 1), lon=slice(west, columns.max() + 1))
    limits.check(8 * region.size, f"{path}: its part in the region takes")
    values = region.values[..., rows - south, :][..., columns - west].astype(np.float64)
    return np.where(np.abs(values) < _FILL, values, np.nan)


def _cells(
    axis: Float64[np.ndarray, " axis"] | Float32[np.ndarray, " axis"],
    centres: Float64[np.ndarray, " cells"],
    name: str,
    path: Path,
) -> np.ndarray:
    """Indices of the cell centres on an axis of a file."""
    spacing = float(np.median(np.abs(np.diff(axis)))) if len(axis) > 1 else 0.0
    if abs(spacing - SPACING) > 1e-3:
        raise DataError(
            f"{path}: a grid of {spacing:g} degrees in {name}, expected {SPACING:g}; take WFDE5 on its own grid"
        )
    nearest = np.abs(axis[:, None] - centres).argmin(0)
    if np.abs(axis[nearest] - centres).max() > 1e-3:
        raise DataError(
            f"{path}: a {name} from {axis.min():g} to {axis.max():g} without all of {centres[0]:g}, {centres[1]:g}, "
            "..., "
            f"{centres[-1]:g}; download the world, or 42 to 53 N and 8 to 28 E"
        )
    return nearest
