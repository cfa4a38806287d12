"""Reader of WFDE5 temperatures (Cucchi et al. 2020): ERA5 over land on a half-degree grid, corrected by observations.

The Climate Data Store offers netCDF files: one per month, like `Tair_WFDE5_CRU_201901_v2.1.nc`, with the variable
`Tair` (time, lat, lon) in K for every hour, and one with the elevation of the cells, `ASurf_WFDE5_CRU_v2.1.nc`, with
the variable `ASurf` (lat, lon) in m. Both variables have only missing values over sea. Files may cover the world or an
area around the region, may have latitudes in either order, and may contain every hour or every sixth hour.

Reading the files is slow, so the region is cached in one file (`iclbench.families.images.array_cache`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Float64

from iclbench.core import limits
from iclbench.core.errors import DataError, error_text
from iclbench.core.file_errors import cannot_read
from iclbench.core.hashing import data_fingerprint, file_hash
from iclbench.families.climate.region import SPACING, STEP_HOURS, latitudes, longitudes, steps_until
from iclbench.families.images.array_cache import cached_array

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

_SOURCE = (
    "WFDE5 in the Climate Data Store (doi.org/10.24381/cds.20d54e34): near-surface air temperature and grid-point "
    "altitude, reference data set CRU"
)
# Range of near-surface temperatures on Earth in K. Values outside this range are in another unit.
_COLDEST, _HOTTEST = 150.0, 350.0
# Larger values count as missing, even if a file does not declare 1e20, the fill value of WFDE5.
_FILL_THRESHOLD = 1e19


def load_region(folder: Path, year: int) -> Float32[np.ndarray, "fields 22 40"]:
    """Read the elevation in metres, followed by the temperatures in K at every sixth hour of the year. Sea is NaN.

    Raises:
        DataError: a file is missing, cannot be read or has unexpected content, or a package is not installed.
    """
    files = _files(folder, year)
    parts = []
    for path in files:
        try:
            with limits.open_file(path) as file:
                parts.append(file_hash(file))
        except OSError as error:
            raise cannot_read(path, error) from None
    return cached_array(f"wfde5-{year}-{data_fingerprint(*parts)}", folder, lambda: _read_arrays(files, year))


def _files(folder: Path, year: int) -> list[Path]:
    """Return the paths of the elevation file and of the twelve monthly files."""
    patterns = ["ASurf_WFDE5_CRU_v*.nc", *(f"Tair_WFDE5_CRU_{year}{month:02}_v*.nc" for month in range(1, 13))]
    matches = [sorted(folder.glob(pattern)) for pattern in patterns]
    missing = [pattern.replace("*", "2.1") for pattern, paths in zip(patterns, matches, strict=True) if not paths]
    if missing:
        more_files = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"{folder} lacks {missing[0]}{more_files}: the elevation and all months of {year} are needed. Download "
            f"them from {_SOURCE}. Put them into this folder, or pass another folder with -o task.path, or its parent "
            "with --data-dir or ICLBENCH_DATA",
            code="missing-data",
        )
    if duplicates := next((paths for paths in matches if len(paths) > 1), None):
        raise DataError(
            f"{folder} has both {' and '.join(path.name for path in duplicates)}; remove one of them", code="duplicate"
        )
    return [paths[0] for paths in matches]


def _read_arrays(files: list[Path], year: int) -> Float32[np.ndarray, "fields 22 40"]:
    for package in ("xarray", "h5netcdf", "h5py"):
        if find_spec(package) is None:
            raise DataError(
                f"reading netCDF files needs {package}, which is not installed; pip install 'iclbench[climate]'",
                code="missing-package",
            )
    elevation, *months = files
    with _open_variable(elevation, "ASurf", ("lat", "lon"), "m") as array:
        height = _read_region(array, elevation)
    parts = [_read_month(path, year, month) for month, path in enumerate(months, 1)]
    temperature = np.concatenate(parts)
    valid = np.isfinite(temperature)
    missing_values = np.argwhere(~valid & valid.any(0))
    if len(missing_values):
        step, row, column = missing_values[0]
        month = next(month for month in range(1, 13) if step < steps_until(month + 1, year))
        raise DataError(
            f"{months[month - 1]}: no temperature at {_time_text(year, int(step))}, {latitudes()[row]:g} N, "
            f"{longitudes()[column]:g} E, although other times have one ({len(missing_values):,} gaps in total); "
            "download it again"
        )
    land = np.isfinite(height) & valid[0]
    if not land.any():
        raise DataError(
            f"{elevation.parent}: no cell of the region has elevation and temperatures; download them again"
        )
    return np.where(land, np.concatenate([height[None], temperature]), np.nan).astype(np.float32)


def _read_month(path: Path, year: int, month: int) -> Float64[np.ndarray, "steps 22 40"]:
    """Read the temperatures at every sixth hour of a month."""
    first, end = (steps_until(m, year) for m in (month, month + 1))
    times = np.datetime64(f"{year}-01-01T00", "h") + STEP_HOURS * np.arange(first, end)
    with _open_variable(path, "Tair", ("time", "lat", "lon"), "K") as array:
        file_times = array["time"].values
        steps = np.flatnonzero(np.isin(file_times, times)) if file_times.dtype.kind == "M" else np.empty(0, int)
        if not np.array_equal(file_times[steps], times):
            raise DataError(
                f"{path}: expected the times {_time_text(year, first)}, {_time_text(year, first + 1)}, ..., "
                f"{_time_text(year, end - 1)} in this order; download the complete month"
            )
        values = _read_region(array, path)[steps]
    kelvin = values[np.isfinite(values)]
    if kelvin.size and ((low := kelvin.min()) < _COLDEST) | ((high := kelvin.max()) > _HOTTEST):
        raise DataError(f"{path}: temperatures from {low:g} to {high:g} are not in K; convert them")
    return values


def _time_text(year: int, step: int) -> str:
    return str(np.datetime64(f"{year}-01-01T00", "h") + STEP_HOURS * step)


@contextmanager
def _open_variable(path: Path, name: str, dims: tuple[str, ...], unit: str) -> Iterator[DataArray]:
    """Open a variable of a file. Its values are read on access."""
    import h5py
    import xarray

    try:
        # Read an attribute with h5py first: h5netcdf would print a traceback for a file on which this fails.
        with h5py.File(path) as file:
            file.attrs.get("_nc3_strict")
        # Without default indexes, only attributes are read at this point, regardless of the length of the axes.
        with xarray.open_dataset(path, engine="h5netcdf", create_default_indexes=False) as dataset:
            yield _check_variable(dataset, path, name, dims, unit)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            f"{path} cannot be read as netCDF ({error_text(error)}); download it again", code="unreadable-file"
        ) from None


def _check_variable(dataset: Dataset, path: Path, name: str, dims: tuple[str, ...], unit: str) -> DataArray:
    if name not in dataset.data_vars:
        available = ", ".join(map(str, dataset.data_vars)) or "none"
        raise DataError(f"{path}: expected a variable '{name}', got {available}; use the files of {_SOURCE}")
    array = dataset[name]
    if set(array.dims) != set(dims) or any(dim not in array.coords for dim in dims):
        available, expected = (", ".join(map(str, axes)) for axes in (array.dims, dims))
        raise DataError(
            f"{path}: '{name}' has the dimensions ({available}), expected ({expected}), each with coordinates"
        )
    if array.attrs.get("units") != unit:
        units = array.attrs.get("units", "")
        raise DataError(f"{path}: '{name}' has the units '{units}', expected '{unit}'; convert it")
    for dim in dims:
        limits.check(8 * array.sizes[dim], f"{path}: the axis '{dim}' has")
    return array.transpose(*dims)


def _read_region(array: DataArray, path: Path) -> Float64[np.ndarray, "*steps 22 40"]:
    """Read the values in the region, from south to north and west to east; missing values are NaN."""
    rows = _cell_indices(array["lat"].values, latitudes().numpy(), "latitude", path)
    columns = _cell_indices(array["lon"].values, longitudes().numpy(), "longitude", path)
    # A contiguous part of the file is read and then reordered, since this is faster than reading single cells.
    first_row, first_column = rows.min(), columns.min()
    region = array.isel(lat=slice(first_row, rows.max() + 1), lon=slice(first_column, columns.max() + 1))
    limits.check(8 * region.size, f"{path}: the region takes")
    values = region.values[..., rows - first_row, :][..., columns - first_column].astype(np.float64)
    return np.where(np.abs(values) < _FILL_THRESHOLD, values, np.nan)


def _cell_indices(
    axis: Float64[np.ndarray, " axis"] | Float32[np.ndarray, " axis"],
    centres: Float64[np.ndarray, " cells"],
    name: str,
    path: Path,
) -> np.ndarray:
    """Return the indices of the cell centres along an axis of a file."""
    spacing = float(np.median(np.abs(np.diff(axis)))) if len(axis) > 1 else 0.0
    if abs(spacing - SPACING) > 1e-3:
        raise DataError(
            f"{path}: the {name} spacing is {spacing:g} degrees, expected {SPACING:g}; use the original WFDE5 grid"
        )
    nearest = np.abs(axis[:, None] - centres).argmin(0)
    if np.abs(axis[nearest] - centres).max() > 1e-3:
        raise DataError(
            f"{path}: the {name} from {axis.min():g} to {axis.max():g} does not include all of {centres[0]:g}, "
            f"{centres[1]:g}, ..., {centres[-1]:g}; download the whole world, or the area from 42 to 53 N and 8 to 28 E"
        )
    return nearest
