"""The user's netCDF files as episodes, against what xarray itself selects, and what is said of files that do not do."""

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
from iclbench.core.errors import DataError
from iclbench.core.settings import validate
from iclbench.families.climate import wfde5
from iclbench.families.climate.era5 import ERA5, ERA5Parameters
from iclbench.families.climate.wfde5 import load_region
from iclbench.families.request import Request
from tests.families.climate import made

HALF = 181 * 4
REGION = {"lat": slice(42, 53), "lon": slice(8, 28)}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    made.write(folder / "era5")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture
def files(data: Path, tmp_path: Path) -> Path:
    """The files in a folder of their own, where one can be replaced."""
    folder = tmp_path / "files"
    folder.mkdir()
    for path in (data / "era5").iterdir():
        os.link(path, folder / path.name)
    return folder


def family(data: Path, **parameters: object) -> ERA5:
    return ERA5(validate(ERA5Parameters, parameters, "test"), data)


def draw(of: ERA5, episodes: int = 40, **options):
    return of.sample(Request(episodes, 100, torch.Generator().manual_seed(0), **options))


def replaced(folder: Path, month: int, dataset: xr.Dataset) -> Path:
    path = made.tair_path(folder, month)
    path.unlink()
    made.save(dataset, path)
    return path


def whole_year(folder: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """Temperatures and elevation of the region as xarray reads them."""
    months = [xr.load_dataset(made.tair_path(folder, month))["Tair"] for month in range(1, 13)]
    elevation = xr.load_dataset(folder / "ASurf_WFDE5_CRU_v2.1.nc")["ASurf"]
    tair = xr.concat(months, "time", coords="minimal", compat="override")
    return tair.sel(REGION), elevation.sel(REGION)


@pytest.mark.slow
def test_patches_are_what_xarray_selects(data: Path) -> None:
    tair, asurf = whole_year(data / "era5")
    for of in (family(data), family(data, clock="training").held_out()):
        episodes = draw(of, 6, related=2)
        start = episodes.truth["start"]
        sets = [(episodes.context, 0), (episodes.targets, 0)]
        sets += [(episodes.related.map(lambda t, j=j: t[:, j]), 1 + j) for j in range(2)]
        for points, which in sets:
            x = of.physical(points.x, start[:, which])[points.mask].numpy()
            y = points.y[points.mask][:, 0].numpy() * of.scale.y_std.item() + of.scale.y_mean.item()
            hours = np.rint(x[:, 0]).astype("timedelta64[h]")
            when, lat, lon = np.datetime64("2019-01-01", "ns") + hours, *np.round(x[:, 1:3].T, 2)
            at = {"lat": xr.DataArray(lat, dims="point"), "lon": xr.DataArray(lon, dims="point")}
            np.testing.assert_allclose(y, tair.sel(at | {"time": xr.DataArray(when, dims="point")}), atol=1e-3)
            np.testing.assert_allclose(x[:, 3], asurf.sel(at), atol=0.01)


def test_sea_is_dropped_and_every_point_on_land_is_context_or_target(data: Path) -> None:
    episodes = draw(family(data), 30)
    sea = 0
    for e, (row, column) in enumerate(episodes.truth["corner"].tolist()):
        land = int(np.isfinite(made.elevation()[2:-2, 2:-2][row : row + 10, column : column + 10]).sum())
        assert episodes.context.counts[e] + episodes.targets.counts[e] == 3 * land
        assert land >= 50
        sea += land < 100
    assert 0 < sea < 30


def test_no_time_is_trained_and_evaluated_on_and_patches_of_an_episode_do_not_overlap(data: Path) -> None:
    of = family(data, cells=4)
    for part, first, end in ((of, 0, HALF), (of.validation(), 0, HALF), (of.held_out(), HALF, 4 * 365)):
        start = draw(part, 300).truth["start"]
        assert first <= start.min() < first + 20 and end - 20 < start.max() + 2 < end
        own = start.sort(1).values
        assert (own[:, 1:] - own[:, :-1]).min() >= 3
    assert of.held_out()._data("cpu") is of._data("cpu"), "what is read is shared"


def test_temperatures_are_standardised_by_the_training_half(data: Path) -> None:
    tair, asurf = whole_year(data / "era5")
    first = tair.sel(time=slice("2019-01", "2019-06"))
    of = family(data).held_out()
    assert of.scale.y_mean.item() == pytest.approx(float(first.mean()))
    assert of.scale.y_std.item() == pytest.approx(float(first.std()))
    assert of.scale.x_mean[3].item() == pytest.approx(float(asurf.mean()))
    assert of.scale.x_std[3].item() == pytest.approx(float(asurf.std()))
    assert float(tair.mean()) - float(first.mean()) > 1, "the year as a whole is warmer"


def test_every_hour_descending_latitudes_and_undeclared_fill_values_read_alike(files: Path) -> None:
    path = made.tair_path(files, 2)
    plain = wfde5._month(path, 2019, 2)
    hourly = made.tair(2, hours=1)
    for other in (hourly, hourly.sel(lat=slice(None, None, -1)), hourly.fillna(1e20)):
        replaced(files, 2, other)
        np.testing.assert_array_equal(wfde5._month(path, 2019, 2), plain)
    with xr.open_dataset(path, mask_and_scale=False) as kept:
        assert float(kept["Tair"].max()) > 1e19


@pytest.mark.slow
def test_what_was_read_is_kept_until_a_file_changes(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "iclbench"
    first = load_region(files, 2019)
    assert first.dtype == np.float32 and first.shape == (1 + 4 * 365, 22, 40)
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as without:
        without.setattr(wfde5, "find_spec", lambda name: None)
        np.testing.assert_array_equal(load_region(files, 2019), first)
        replaced(files, 12, made.tair(12) + 1)
        with pytest.raises(DataError, match=r"by xarray, which is not installed; pip install 'iclbench\[climate\]'"):
            load_region(files, 2019)


def test_a_folder_is_found_in_the_data_folder_or_at_its_path(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    for of in (family(data), family(None), family(tmp_path), family(tmp_path, path=str(data / "era5"))):
        assert of._folder.resolve() == data / "era5"
    line = (
        r"nowhere lacks ASurf_WFDE5_CRU_v2\.1\.nc and 12 more: the elevation and all months of 2019 are needed, of "
        r"WFDE5.*doi\.org.*; put them there, or point --data-dir or ICLBENCH_DATA .*-o task\.path"
    )
    with pytest.raises(DataError, match=line):
        draw(family(tmp_path, path="nowhere"))


def _with_time(change) -> xr.Dataset:
    dataset = made.tair(1)
    return dataset.assign_coords(time=change(dataset["time"]))


CELSIUS = made.tair(1)["Tair"].sel(lat=slice(42, 53), lon=slice(8, 28)) - 273.15
NAMED = {
    "no variable 'Tair' (there is Qair)": lambda: made.tair(1).rename(Tair="Qair"),
    "'Tair' is over (time, y, lon), expected (time, lat, lon)": lambda: made.tair(1).rename(lat="y"),
    "'Tair' is in 'degC', expected 'K'": lambda: made.tair(1).assign(
        Tair=made.tair(1)["Tair"].assign_attrs(units="degC")
    ),
    "'Tair' is in '', expected 'K'": lambda: made.tair(1).assign(Tair=made.tair(1)["Tair"].drop_attrs()),
    f"temperatures from {float(CELSIUS.min()):g} to {float(CELSIUS.max()):g}, which are not in K": lambda: (
        (made.tair(1) - 273.15).assign_attrs().map(lambda a: a.assign_attrs(units="K"))
    ),
    "a grid of 1 degrees in latitude, expected 0.5": lambda: made.tair(1).isel(lat=slice(0, None, 2)),
    "a grid of 0.25 degrees in longitude": lambda: made.tair(1).assign_coords(lon=made.LONGITUDES / 2),
    "a latitude from 41.25 to 49.75 without all of 42.25": lambda: made.tair(1).isel(lat=slice(0, 18)),
    "a longitude from 7.5 to 29": lambda: made.tair(1).assign_coords(lon=made.LONGITUDES + 0.25),
    "not all of the times 2019-01-01T00": lambda: made.tair(1).isel(time=slice(4, None)),
    "2019-01-31T18 in their order": lambda: made.tair(2),
    "download the whole month": lambda: _with_time(lambda t: t + np.timedelta64(1, "h")),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", NAMED)
def test_a_file_with_something_else_in_it_is_one_line_that_names_it(words: str, files: Path) -> None:
    path = replaced(files, 1, NAMED[words]())
    with pytest.raises(DataError) as raised:
        load_region(files, 2019)
    said = str(raised.value)
    assert said.startswith(f"{path}: ") and words in said and "\n" not in said


def test_a_file_that_is_cut_off_or_no_netcdf_is_one_line_that_names_it(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", printed.append)
    path = made.tair_path(files, 1)
    content = path.read_bytes()
    header = content.index(b"OHDR") + 20  # of the root, which then has another checksum
    flipped = content[:header] + bytes([content[header] ^ 255]) + content[header + 1 :]
    for damaged in (content[: len(content) // 2], content[:100], b"", b"<html>Not Found</html>", flipped):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(DataError) as raised:
            load_region(files, 2019)
        said = str(raised.value)
        assert said.startswith(f"{path} cannot be read as netCDF (") and said.endswith("download it again")
        assert "\n" not in said
    del raised
    gc.collect()
    assert not printed, "no traceback when half-made objects are deleted"


def test_missing_months_two_of_a_month_and_gaps_are_one_line(files: Path) -> None:
    gap = made.tair(8)
    gap["Tair"][5, 12, 30] = np.nan
    replaced(files, 8, gap)
    line = r"201908_v2\.1\.nc: no temperature at 2019-08-02T06, 47\.25 N, 22\.25 E \(1 gaps in all\)"
    with pytest.raises(DataError, match=line):
        load_region(files, 2019)
    for month in (3, 7):
        made.tair_path(files, month).unlink()
    with pytest.raises(DataError, match=r"lacks Tair_WFDE5_CRU_201903_v2\.1\.nc and 1 more: .* all months of 2019"):
        load_region(files, 2019)
    for month in (3, 7):
        made.save(made.tair(month), made.tair_path(files, month))
    (files / "Tair_WFDE5_CRU_201905_v2.0.nc").touch()
    with pytest.raises(DataError, match=r"holds Tair_WFDE5_CRU_201905_v2\.0\.nc and .*v2\.1\.nc; leave one"):
        load_region(files, 2019)


def test_no_axis_is_read_that_is_longer_than_the_limit(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_MAX_BYTES", "150")
    with pytest.raises(DataError, match=r"ASurf_WFDE5_CRU_v2\.1\.nc: its axis 'lat' has 208 B, more than the 150 B"):
        load_region(files, 2019)


@pytest.mark.parametrize("preset", ["smoke", "small", "paper"])
def test_backbones_are_told_what_they_are_of_climate(preset: str) -> None:
    """So sizes that meet the budgets there meet them here."""
    era5, climate = (resolve_task(name, preset)[0] for name in ("era5", "climate"))
    assert era5.shape(era5.build()) == climate.shape(climate.build())
    assert load_task("era5")[1].presets[preset].budget == load_task("climate")[1].presets[preset].budget


def test_moments_that_a_run_stored_are_read_exactly_and_need_no_files(data):
    measured = family(data)
    stored = ERA5(validate(ERA5Parameters, {}, "test"))
    stored.learned = json.loads(json.dumps(measured.learn()))
    assert stored.learned["fingerprint"] == measured.fingerprint
    for name, value in measured.scale.tensors().items():
        assert torch.equal(value, stored.scale.tensors()[name]), name
