"""Episodes from netCDF files against selections by xarray, and errors for unsuitable files."""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from iclbench.config.cards import load_task
from iclbench.config.resolution import resolve_task
from iclbench.families.climate import wfde5
from iclbench.families.climate.era5 import ERA5, ERA5Parameters
from iclbench.families.climate.wfde5 import load_region
from iclbench.families.request import Request
from tests.families.climate import wfde5_files
from tests.refusals import refused

# The number of times in the first half of the year, four per day.
FIRST_HALF = 181 * 4
REGION = {"lat": slice(42, 53), "lon": slice(8, 28)}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    wfde5_files.write(folder / "era5")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture
def files(data: Path, tmp_path: Path) -> Path:
    """A folder with hard links to the generated files, so that a test can replace single files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for path in (data / "era5").iterdir():
        os.link(path, folder / path.name)
    return folder


def build_family(data: Path | None, **parameters: object) -> ERA5:
    return ERA5(ERA5Parameters.model_validate(parameters), data)


def draw(family: ERA5, episodes: int = 40, **options):
    return family.sample(Request(episodes, 100, torch.Generator().manual_seed(0), **options))


def replace_month(folder: Path, month: int, dataset: xr.Dataset) -> Path:
    path = wfde5_files.tair_path(folder, month)
    path.unlink()
    wfde5_files.save(dataset, path)
    return path


def load_year(folder: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """Read temperatures and elevation of the region with xarray."""
    months = [xr.load_dataset(wfde5_files.tair_path(folder, month))["Tair"] for month in range(1, 13)]
    elevation = xr.load_dataset(folder / "ASurf_WFDE5_CRU_v2.1.nc")["ASurf"]
    tair = xr.concat(months, "time", coords="minimal", compat="override")
    return tair.sel(REGION), elevation.sel(REGION)


@pytest.mark.slow
def test_patches_equal_selections_by_xarray(data: Path) -> None:
    tair, asurf = load_year(data / "era5")
    for family in (build_family(data), build_family(data, clock="training").held_out()):
        episodes = draw(family, 6, related=2)
        start = episodes.truth["start"]
        sets = [(episodes.context, 0), (episodes.targets, 0)]
        sets += [(episodes.related.map(lambda t, j=j: t[:, j]), 1 + j) for j in range(2)]
        for points, index in sets:
            x = family.to_coordinates(points.x, start[:, index])[points.mask].numpy()
            y = points.y[points.mask][:, 0].numpy() * family.scale.y_std.item() + family.scale.y_mean.item()
            hours = np.rint(x[:, 0]).astype("timedelta64[h]")
            times, lat, lon = np.datetime64("2019-01-01", "ns") + hours, *np.round(x[:, 1:3].T, 2)
            cells = {"lat": xr.DataArray(lat, dims="point"), "lon": xr.DataArray(lon, dims="point")}
            np.testing.assert_allclose(y, tair.sel(cells | {"time": xr.DataArray(times, dims="point")}), atol=1e-3)
            np.testing.assert_allclose(x[:, 3], asurf.sel(cells), atol=0.01)


@pytest.mark.slow
def test_every_point_on_land_is_either_context_or_target(data: Path) -> None:
    episodes = draw(build_family(data), 30)
    patches_with_sea = 0
    for e, (row, column) in enumerate(episodes.truth["corner"].tolist()):
        land = int(np.isfinite(wfde5_files.elevation()[2:-2, 2:-2][row : row + 10, column : column + 10]).sum())
        assert episodes.context.counts[e] + episodes.targets.counts[e] == 3 * land
        assert land >= 50
        patches_with_sea += land < 100
    assert 0 < patches_with_sea < 30


def test_training_and_evaluation_use_different_times_and_patches_do_not_overlap(data: Path) -> None:
    family = build_family(data, cells=4)
    for split, first, end in (
        (family, 0, FIRST_HALF),
        (family.validation(), 0, FIRST_HALF),
        (family.held_out(), FIRST_HALF, 4 * 365),
    ):
        start = draw(split, 300).truth["start"]
        assert first <= start.min() < first + 20 and end - 20 < start.max() + 2 < end
        assert start.sort(1).values.diff(dim=1).min() >= 3
    assert family.held_out()._data("cpu") is family._data("cpu"), "repeated calls share the data"


def test_temperatures_are_standardised_by_the_training_half(data: Path) -> None:
    tair, asurf = load_year(data / "era5")
    first_half = tair.sel(time=slice("2019-01", "2019-06"))
    scale = build_family(data).held_out().scale
    assert scale.y_mean.item() == pytest.approx(float(first_half.mean()))
    assert scale.y_std.item() == pytest.approx(float(first_half.std()))
    assert scale.x_mean[3].item() == pytest.approx(float(asurf.mean()))
    assert scale.x_std[3].item() == pytest.approx(float(asurf.std()))
    assert float(tair.mean()) - float(first_half.mean()) > 1, "the complete year is warmer"


def test_hourly_files_descending_latitudes_and_undeclared_fill_values_are_read(files: Path) -> None:
    path = wfde5_files.tair_path(files, 2)
    expected = wfde5._read_month(path, 2019, 2)
    hourly = wfde5_files.tair(2, hours=1)
    for dataset in (hourly, hourly.sel(lat=slice(None, None, -1)), hourly.fillna(1e20)):
        replace_month(files, 2, dataset)
        np.testing.assert_array_equal(wfde5._read_month(path, 2019, 2), expected)
    with xr.open_dataset(path, mask_and_scale=False) as dataset:
        assert float(dataset["Tair"].max()) > 1e19


@pytest.mark.slow
def test_the_region_is_cached_until_a_file_is_changed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "iclbench"
    first = load_region(files, 2019)
    assert first.dtype == np.float32 and first.shape == (1 + 4 * 365, 22, 40)
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patched:
        patched.setattr(wfde5, "find_spec", lambda name: None)
        np.testing.assert_array_equal(load_region(files, 2019), first)
        replace_month(files, 12, wfde5_files.tair(12) + 1)
        with refused("missing-package", "xarray", "'iclbench[climate]'"):
            load_region(files, 2019)


def test_files_are_found_in_the_data_folder_the_current_folder_or_at_the_path(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    for family in (
        build_family(data),
        build_family(None),
        build_family(tmp_path),
        build_family(tmp_path, path=str(data / "era5")),
    ):
        assert family._folder.resolve() == data / "era5"
    message_parts = ("ASurf_WFDE5_CRU_v2.1.nc", 12, 2019, "doi.org", "--data-dir", "ICLBENCH_DATA", "-o task.path")
    with refused("missing-data", tmp_path / "nowhere", *message_parts):
        draw(build_family(tmp_path, path="nowhere"))


def _with_time(change) -> xr.Dataset:
    dataset = wfde5_files.tair(1)
    return dataset.assign_coords(time=change(dataset["time"]))


UNSUITABLE = {
    "variable": (lambda: wfde5_files.tair(1).rename(Tair="Qair"), ["'Tair'", "Qair"]),
    "dimensions": (lambda: wfde5_files.tair(1).rename(lat="y"), ["(time, y, lon)", "(time, lat, lon)"]),
    "units": (
        lambda: wfde5_files.tair(1).assign(Tair=wfde5_files.tair(1)["Tair"].assign_attrs(units="degC")),
        ["'degC'", "'K'"],
    ),
    "no-units": (lambda: wfde5_files.tair(1).assign(Tair=wfde5_files.tair(1)["Tair"].drop_attrs()), ["''", "'K'"]),
    "celsius": (
        lambda: (wfde5_files.tair(1) - 273.15).map(lambda a: a.assign_attrs(units="K")),
        ["-0.78", 11.1, "K"],
    ),
    "coarse-grid": (lambda: wfde5_files.tair(1).isel(lat=slice(0, None, 2)), ["latitude", 1, 0.5]),
    "fine-grid": (
        lambda: wfde5_files.tair(1).assign_coords(lon=wfde5_files.LONGITUDES / 2),
        ["longitude", 0.25, 0.5],
    ),
    "small-area": (lambda: wfde5_files.tair(1).isel(lat=slice(0, 18)), ["latitude", 41.25, 49.75, 42.25]),
    "shifted-grid": (
        lambda: wfde5_files.tair(1).assign_coords(lon=wfde5_files.LONGITUDES + 0.25),
        ["longitude", 7.5, 29],
    ),
    "first-times": (lambda: wfde5_files.tair(1).isel(time=slice(4, None)), ["2019-01-01T00"]),
    "month": (lambda: wfde5_files.tair(2), ["2019-01-31T18"]),
    "other-times": (lambda: _with_time(lambda t: t + np.timedelta64(1, "h")), ["2019-01-01T00", "2019-01-31T18"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNSUITABLE)
def test_files_with_unsuitable_content_are_refused(case: str, files: Path) -> None:
    make, message_parts = UNSUITABLE[case]
    path = replace_month(files, 1, make())
    with refused("bad-data", path, *message_parts):
        load_region(files, 2019)


def test_damaged_files_are_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    path = wfde5_files.tair_path(files, 1)
    content = path.read_bytes()
    header = content.index(b"OHDR") + 20  # a byte of the root group, whose checksum becomes wrong
    flipped = content[:header] + bytes([content[header] ^ 255]) + content[header + 1 :]
    for damaged in (content[: len(content) // 2], content[:100], b"", b"<html>Not Found</html>", flipped):
        path.unlink()
        path.write_bytes(damaged)
        with refused("unreadable-file", path) as error:
            load_region(files, 2019)
    del error
    gc.collect()
    assert not unraisable, "deleting incomplete objects prints no traceback"


def test_missing_months_duplicate_months_and_gaps_are_refused(files: Path) -> None:
    gap = wfde5_files.tair(8)
    gap["Tair"][5, 12, 30] = np.nan
    replace_month(files, 8, gap)
    with refused("bad-data", "201908_v2.1.nc", "2019-08-02T06", "47.25 N", "22.25 E", 1):
        load_region(files, 2019)
    for month in (3, 7):
        wfde5_files.tair_path(files, month).unlink()
    with refused("missing-data", "Tair_WFDE5_CRU_201903_v2.1.nc", 1, 2019):
        load_region(files, 2019)
    for month in (3, 7):
        wfde5_files.save(wfde5_files.tair(month), wfde5_files.tair_path(files, month))
    (files / "Tair_WFDE5_CRU_201905_v2.0.nc").touch()
    with refused("duplicate", files, "Tair_WFDE5_CRU_201905_v2.0.nc", "Tair_WFDE5_CRU_201905_v2.1.nc"):
        load_region(files, 2019)


def test_files_with_axes_larger_than_the_byte_limit_are_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_MAX_BYTES", "150")
    with refused("too-large", "ASurf_WFDE5_CRU_v2.1.nc", "'lat'", "208 B", "150 B"):
        load_region(files, 2019)


@pytest.mark.parametrize("preset", ["smoke", "small", "paper"])
def test_shapes_and_training_budgets_are_the_same_as_for_climate(preset: str) -> None:
    """Backbones must have the same sizes on `era5` and on `climate`."""
    era5, climate = (resolve_task(name, preset)[0] for name in ("era5", "climate"))
    assert era5.shape(era5.build()) == climate.shape(climate.build())
    assert load_task("era5")[1].presets[preset].budget == load_task("climate")[1].presets[preset].budget


def test_moments_are_stored_exactly_and_can_be_used_without_the_files(data):
    measured = build_family(data)
    stored = build_family(None)
    stored.learned = json.loads(json.dumps(measured.learn()))
    assert stored.learned["fingerprint"] == measured.fingerprint
    for name, value in measured.scale.tensors().items():
        assert torch.equal(value, stored.scale.tensors()[name]), name
