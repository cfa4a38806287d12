"""Episodes of the family `climate` against the formulas in its docstrings and the sizes in the paper."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import integrate, stats

from iclbench.core.episodes import Episodes
from iclbench.families.climate import elevation
from iclbench.families.climate.climate import Climate, ClimateParameters
from iclbench.families.climate.region import Scale
from iclbench.families.climate.weather import Weather, climate
from iclbench.families.request import Request
from tests.refusals import refused

LATITUDES, LONGITUDES = 42.25 + 0.5 * np.arange(22), 8.25 + 0.5 * np.arange(40)
KM_PER_LONGITUDE = 111.2 * math.cos(math.radians(47.5))
# Number of six-hourly steps from January to June 2019, and in the complete year.
STEPS_OF_FIRST_HALF, STEPS_OF_YEAR = 181 * 4, 365 * 4


def build_family(**parameters: object) -> Climate:
    return Climate(ClimateParameters.model_validate(parameters))


SMALL = build_family(cells=4, times=2, targets=3)


def draw(episodes: int = 1500, points: int = 100, seed: int = 0, family: Climate = SMALL, **options) -> Episodes:
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed), **options))


def temperature(hours, latitude, longitude, metres):
    """Return the expected temperature according to the docstring of `weather`."""
    sea_level = 14 - 0.7 * (latitude - 47.5)
    year = -11 * np.cos(2 * np.pi * (hours / 24 - 20) / 365)
    day = 4 * np.cos(2 * np.pi * (hours + longitude / 15 - 15) / 24)
    return sea_level + year + day - 6.5 * metres / 1000


def test_the_map_follows_its_formula_and_resembles_central_europe() -> None:
    heights = elevation.embedded_elevation().numpy()
    north, east = 111.2 * (LATITUDES[:, None] - 42), KM_PER_LONGITUDE * (LONGITUDES - 8)
    share = np.linspace(0, 1, 1001)[:, None, None]
    profile_sums = []
    for segments in (elevation._RIDGES, elevation._TROUGHS):
        profiles = []
        for (lat, lon), (end_lat, end_lon), height, width in segments:
            # Distance to the nearest of many points on the segment.
            n, e = 111.2 * (lat + share * (end_lat - lat) - 42), KM_PER_LONGITUDE * (lon + share * (end_lon - lon) - 8)
            nearest = [np.sqrt((north[r] - n[:, 0]) ** 2 + (east - e[:, 0]) ** 2).min(0) for r in range(len(LATITUDES))]
            profiles.append(height * np.exp(-(np.array(nearest) ** 2) / (2 * width**2)))
        profile_sums.append(sum(profiles))
    valleys = 1 + 0.3 * np.sin(2 * np.pi * east / 160) * np.sin(2 * np.pi * north / 130)
    expected = 200 + profile_sums[0] * valleys - profile_sums[1]
    np.testing.assert_allclose(heights, np.where(expected < 0, np.nan, expected), atol=0.5)
    assert 2500 < np.nanmax(heights) < 3200 and 150 < np.nanquantile(heights, 0.3) < 300
    assert 0.05 < np.isnan(heights).mean() < 0.15

    def height_at(latitude: float, longitude: float) -> float:
        return heights[np.abs(LATITUDES - latitude).argmin(), np.abs(LONGITUDES - longitude).argmin()]

    assert np.isnan(height_at(43.25, 15.25)), "the Adriatic"
    assert height_at(47.25, 19.75) < 300 < 1500 < height_at(46.25, 10.25), "the Great Plain and the Alps"


def test_the_climate_has_yearly_and_daily_cycles_and_a_lapse_rate() -> None:
    def temperature_at(hours=0.0, latitude=47.5, longitude=15.0, metres=0.0) -> np.ndarray:
        inputs = np.broadcast_arrays(hours, latitude, longitude, metres)
        return climate(torch.tensor(np.stack(inputs, -1))).numpy()

    assert temperature_at(metres=1000.0) - temperature_at() == pytest.approx(-6.5)
    days = temperature_at(hours=6.0 * np.arange(4 * 365)).reshape(365, 4).mean(1)
    assert days.argmin() in (19, 20) and np.ptp(days) == pytest.approx(22, abs=0.01), "21 January"
    hours = np.arange(0, 24, 0.5)
    for longitude in (15.0, 22.5):
        warmest = hours[temperature_at(hours=100 * 24 + hours, longitude=longitude).argmax()]
        assert warmest + longitude / 15 == 15, "three hours after local solar noon"
    assert temperature_at(latitude=50.0) < temperature_at(latitude=45.0)
    rng = np.random.default_rng(0)
    inputs = rng.uniform([0, 42, 8, 0], [8760, 53, 28, 3000], (50, 4))
    np.testing.assert_allclose(climate(torch.tensor(inputs)), temperature(*inputs.T), atol=1e-9)


def test_fields_have_the_covariance_of_the_kernel() -> None:
    """Fields are linear in the normal numbers, so the fields for unit vectors form a factor of the covariance."""
    weather = Weather(*(torch.tensor([value]).double() for value in (180.0, 9.0, 2.5)))
    times, rows, columns = 3, 4, 5
    count = times * rows * columns
    factor = weather.draw(torch.eye(count).double().view(1, count, times, rows, columns)).reshape(count, count)
    grid = np.stack(np.meshgrid(6.0 * np.arange(times), LATITUDES[:rows], LONGITUDES[:columns], indexing="ij"), -1)
    points = grid.reshape(-1, 3)
    expected = np.array([[_kernel(a - b, 180.0, 9.0, 2.5) for b in points] for a in points])
    np.testing.assert_allclose(factor.T @ factor, expected, atol=1e-6)
    x = torch.tensor(np.c_[points, np.zeros(count)])[None]
    np.testing.assert_allclose(weather.covariance(x, x[:, :7])[0], expected[:, :7], atol=1e-12)


def _kernel(d: np.ndarray, space: float, time: float, amplitude: float) -> float:
    squared = (d[0] / time) ** 2 + (111.2 * d[1] / space) ** 2 + (KM_PER_LONGITUDE * d[2] / space) ** 2
    return amplitude**2 * math.exp(-squared / 2)


def test_every_point_on_land_is_either_context_or_target() -> None:
    family = build_family()
    episodes = draw(12, family=family)
    metres = elevation.embedded_elevation().numpy()
    for e, (row, column) in enumerate(episodes.truth["corner"].tolist()):
        steps = episodes.truth["start"][e].numpy()
        patch = metres[row : row + 10, column : column + 10]
        land = np.argwhere(np.isfinite(patch))
        assert len(land) >= 50
        expected = {(6 * (steps[0] + t), r, c) for t in range(3) for r, c in land}
        point_cells = []
        for points in (episodes.context, episodes.targets):
            x = family.to_coordinates(points.x[e : e + 1], episodes.truth["start"][e : e + 1, 0])[0][
                points.mask[e]
            ].numpy()
            r, c = np.rint(2 * (x[:, 1] - LATITUDES[row])), np.rint(2 * (x[:, 2] - LONGITUDES[column]))
            np.testing.assert_allclose(x[:, 3], patch[r.astype(int), c.astype(int)], atol=1e-3)
            np.testing.assert_allclose(x[:, 1:3], np.c_[LATITUDES[row] + r / 2, LONGITUDES[column] + c / 2], atol=1e-5)
            point_cells += zip(np.rint(x[:, 0]), r, c, strict=True)
        assert set(point_cells) == expected and len(point_cells) == len(expected) == 3 * len(land)
    assert (episodes.context.y[~episodes.context.mask] == 0).all() and episodes.targets.mask.sum() > 1500


def test_temperatures_are_the_climate_plus_noise() -> None:
    """If the amplitude of the weather is tiny, temperatures minus the climate are the noise."""
    family = build_family(cells=4, times=2, amplitude=(0.01, 0.01), noise=0.7)
    episodes = draw(400, family=family)
    x = family.to_coordinates(episodes.targets.x, episodes.truth["start"][:, 0])[episodes.targets.mask].numpy()
    y = (
        episodes.targets.y[episodes.targets.mask][:, 0].double().numpy() * family.scale.y_std.item()
        + family.scale.y_mean.item()
    )
    residual = y - temperature(*x.T)
    assert stats.kstest(residual, stats.norm(0, math.hypot(0.7, 0.01)).cdf).pvalue > 1e-3


def test_temperatures_are_standardised_with_moments_over_land_in_the_first_half_of_the_year() -> None:
    family = build_family()
    metres = elevation.embedded_elevation().numpy()
    land = np.argwhere(np.isfinite(metres))
    expected = [
        temperature(6.0 * np.arange(STEPS_OF_FIRST_HALF), LATITUDES[r], LONGITUDES[c], metres[r, c]) for r, c in land
    ]
    squares, _ = integrate.quad(lambda log: math.exp(2 * log) / math.log(4), 0, math.log(4))
    assert family.scale.y_mean.item() == pytest.approx(np.mean(expected))
    assert family.scale.y_std.item() == pytest.approx(math.sqrt(np.var(expected) + squares))
    moments = [(np.mean(v), np.std(v)) for v in (LATITUDES, LONGITUDES, metres[np.isfinite(metres)])]
    np.testing.assert_allclose(torch.stack([family.scale.x_mean, family.scale.x_std], 1)[1:], moments)
    episodes = draw(2000, 1, family=build_family(cells=3, times=1, max_related=0))
    assert abs(episodes.context.y.square().mean() - 1) < 0.1, "patches are approximately standardised, too"


def test_times_are_relative_to_the_patch_or_to_the_training_half_of_the_year() -> None:
    patch_clock = draw(20, family=build_family(targets=3))
    assert sorted(set(patch_clock.context.x[patch_clock.context.mask][:, 0].tolist())) == pytest.approx(
        [-(1.5**0.5), 0, 1.5**0.5]
    )
    family = build_family(targets=3, clock="training")
    year_clock = draw(20, family=family.held_out())
    hours = 6.0 * (year_clock.truth["start"][:, 0].numpy()[:, None] + np.arange(3))
    times = 6.0 * np.arange(STEPS_OF_FIRST_HALF)
    standardised = (hours - times.mean()) / times.std()
    assert standardised.min() > 1.73 and standardised.max() < 5.26
    bounds = [(6.0 * step - times.mean()) / times.std() for step in (0, STEPS_OF_FIRST_HALF - 1, STEPS_OF_YEAR - 1)]
    assert bounds == pytest.approx([-1.73, 1.73, 5.25], abs=5e-3), "the numbers in the docstring of `patches`"
    x = year_clock.context.x[..., 0].numpy()[:, :, None]
    difference = np.abs(x - standardised[:, None]).min(-1)
    assert difference[year_clock.context.mask.numpy()].max() < 1e-6
    assert torch.equal(patch_clock.context.x[..., 1:], draw(20, family=family).context.x[..., 1:])
    scale = Scale.of(1, elevation.embedded_elevation(), 0.0, 1.0)
    assert scale.x_mean[0] == 0 and scale.x_std[0] == 1, "a single time is not scaled"


@pytest.mark.parametrize(("sizes", "divisor_of_min", "divisor_of_max"), [("appendix", 3, 1), ("section", 100, 5)])
def test_sizes_are_uniform_over_the_ranges_in_the_paper(sizes: str, divisor_of_min: int, divisor_of_max: int) -> None:
    family = build_family(targets=1, related_sizes=sizes)
    episodes = draw(300, family=family)
    metres = elevation.embedded_elevation().isfinite()
    count = np.array([3 * int(metres[r : r + 10, c : c + 10].sum()) for r, c in episodes.truth["corner"].tolist()])
    context_sizes = episodes.context.counts.numpy()
    assert (context_sizes >= np.maximum(count // 100, 1)).all() and (context_sizes <= count // 3).all()
    is_land = count == 300
    assert stats.chisquare(np.bincount((context_sizes[is_land] - 3) * 7 // 98, minlength=7)).pvalue > 1e-3
    related = episodes.related.counts.numpy()
    is_present = related > 0
    smallest, largest = (
        np.broadcast_to(size[:, None], related.shape)
        for size in (np.maximum(count // divisor_of_min, 1), count // divisor_of_max)
    )
    assert (related[is_present] >= smallest[is_present]).all()
    assert (related[is_present] <= largest[is_present]).all()
    first, last = max(300 // divisor_of_min, 1), 300 // divisor_of_max
    size_bins = (related[is_land][is_present[is_land]] - first) * 6 // (last - first + 1)
    assert stats.chisquare(np.bincount(size_bins, minlength=6)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(is_present.sum(1), minlength=3)).pvalue > 1e-3
    assert family.related_points == last


@pytest.mark.parametrize(("sizes", "low", "high"), [("appendix", 5, 16), ("section", 1, 3)])
def test_all_sizes_of_small_patches_are_equally_likely(sizes: str, low: int, high: int) -> None:
    episodes = draw(family=build_family(cells=4, times=1, targets=1, related_sizes=sizes))
    metres = elevation.embedded_elevation().isfinite()
    is_land = np.array([metres[r : r + 4, c : c + 4].all().item() for r, c in episodes.truth["corner"].tolist()])
    related = episodes.related.counts.numpy()[is_land]
    for counts, first, last in ((episodes.context.counts.numpy()[is_land], 1, 5), (related[related > 0], low, high)):
        assert counts.min() == first and counts.max() == last
        assert stats.chisquare(np.bincount(counts - first)).pvalue > 1e-3


@pytest.mark.slow
def test_training_and_evaluation_use_different_times_and_patches_are_independent() -> None:
    times = 2
    for family, shift, first, end in (
        (SMALL, "none", 0, STEPS_OF_FIRST_HALF),
        (SMALL.validation(), "none", 0, STEPS_OF_FIRST_HALF),
        (SMALL.held_out(), "none", STEPS_OF_FIRST_HALF, STEPS_OF_YEAR),
        (SMALL.held_out(), "january-june", 0, STEPS_OF_FIRST_HALF),
    ):
        start = draw(500, family=family, shift=shift).truth["start"].numpy()
        assert first <= start.min() < first + 9 and end - times - 9 < start.max() <= end - times
        expected = stats.uniform(first, end - times + 1 - first)
        assert stats.kstest(start[:, 0] + np.random.default_rng(0).random(len(start)), expected.cdf).pvalue > 1e-3
        gaps = np.abs(start[:, [0, 0, 1]] - start[:, [1, 2, 2]]) - (times - 1)
        assert np.exp(-((6 * gaps.min() / 48) ** 2) / 2) <= 1e-6, "from the end of a patch to the beginning of the next"
    quarters = SMALL.held_out().strata(draw(300, family=SMALL.held_out()))
    assert {name: bool(members.any()) for name, members in quarters.items()} == {
        "january-march": False, "april-june": False, "july-september": True, "october-december": True,
    }  # fmt: skip
    assert (torch.stack([*quarters.values()]).sum(0) == 1).all()


def test_weather_parameters_are_log_uniform_and_stratified_in_prompts() -> None:
    ranges = {"space": (100, 600), "time": (6, 48), "amplitude": (1, 4)}
    truth = draw().truth
    prompts = SMALL.sample_prompts(Request(64, 10, torch.Generator().manual_seed(0)))
    for name, (low, high) in ranges.items():
        assert stats.kstest((truth[name] / low).log() / math.log(high / low), "uniform").pvalue > 1e-3
        stratum = ((prompts.truth[name] / low).log() / math.log(high / low) * 64).floor()
        assert sorted(stratum.tolist()) == list(range(64))
    correlations = np.corrcoef([prompts.truth[name].log().numpy() for name in ranges])
    assert np.abs(correlations - np.eye(3)).max() < 0.4, "strata are paired independently"


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"space": (600.0, 100.0)}, "space: "),
        ({"noise": 0.0}, "noise"),
        ({"cells": 23}, "cells"),
        ({"time": (6.0, 400.0)}, "max_related: "),
        ({"clock": "sun"}, "clock"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict, name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        build_family(**parameters)


def test_contexts_that_leave_no_targets_are_refused() -> None:
    assert (draw(50, 149, family=build_family(), shift="points-149").context.counts == 149).all()
    with refused("bad-value", "'points-150'", 150):
        draw(2, 150, family=build_family(), shift="points-150")
