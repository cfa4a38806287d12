"""What climate draws, against the formulas of its docstrings and the sizes of the paper."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.settings import validate
from iclbench.families.climate import elevation
from iclbench.families.climate.climate import Climate, ClimateParameters
from iclbench.families.climate.region import Scale
from iclbench.families.climate.weather import Weather, climate
from iclbench.families.request import Request

LATITUDES, LONGITUDES = 42.25 + 0.5 * np.arange(22), 8.25 + 0.5 * np.arange(40)
EAST = 111.2 * math.cos(math.radians(47.5))
# Six-hourly steps from January to June of 2019, and of the whole year.
HALF, YEAR = 181 * 4, 365 * 4


def family(**parameters: object) -> Climate:
    return Climate(validate(ClimateParameters, parameters, "test"))


SMALL = family(cells=4, times=2, targets=3)


def draw(episodes: int = 1500, points: int = 100, seed: int = 0, of: Climate = SMALL, **options) -> Episodes:
    return of.sample(Request(episodes, points, torch.Generator().manual_seed(seed), **options))


def temperature(hours, latitude, longitude, metres):
    """The expected temperature as the docstring of `weather` has it."""
    sea_level = 14 - 0.7 * (latitude - 47.5)
    year = -11 * np.cos(2 * np.pi * (hours / 24 - 20) / 365)
    day = 4 * np.cos(2 * np.pi * (hours + longitude / 15 - 15) / 24)
    return sea_level + year + day - 6.5 * metres / 1000


def test_the_map_is_its_formula_and_looks_like_central_europe() -> None:
    found = elevation.embedded_elevation().numpy()
    north, east = 111.2 * (LATITUDES[:, None] - 42), EAST * (LONGITUDES - 8)
    along = np.linspace(0, 1, 1001)[:, None, None]
    total = []
    for part in (elevation._RIDGES, elevation._TROUGHS):
        profiles = []
        for (lat, lon), (end_lat, end_lon), height, width in part:
            # The nearest of many points on the segment.
            n, e = 111.2 * (lat + along * (end_lat - lat) - 42), EAST * (lon + along * (end_lon - lon) - 8)
            nearest = [np.sqrt((north[r] - n[:, 0]) ** 2 + (east - e[:, 0]) ** 2).min(0) for r in range(len(LATITUDES))]
            profiles.append(height * np.exp(-(np.array(nearest) ** 2) / (2 * width**2)))
        total.append(sum(profiles))
    valleys = 1 + 0.3 * np.sin(2 * np.pi * east / 160) * np.sin(2 * np.pi * north / 130)
    expected = 200 + total[0] * valleys - total[1]
    np.testing.assert_allclose(found, np.where(expected < 0, np.nan, expected), atol=0.5)
    assert 2500 < np.nanmax(found) < 3200 and 150 < np.nanquantile(found, 0.3) < 300
    assert 0.05 < np.isnan(found).mean() < 0.15

    def at(latitude: float, longitude: float) -> float:
        return found[np.abs(LATITUDES - latitude).argmin(), np.abs(LONGITUDES - longitude).argmin()]

    assert np.isnan(at(43.25, 15.25)), "the Adriatic"
    assert at(47.25, 19.75) < 300 < 1500 < at(46.25, 10.25), "the Great Plain and the Alps"


def test_seasons_days_and_valleys() -> None:
    def at(hours=0.0, latitude=47.5, longitude=15.0, metres=0.0) -> np.ndarray:
        place = np.broadcast_arrays(hours, latitude, longitude, metres)
        return climate(torch.tensor(np.stack(place, -1))).numpy()

    assert at(metres=1000.0) - at() == pytest.approx(-6.5)
    days = at(hours=6.0 * np.arange(4 * 365)).reshape(365, 4).mean(1)
    assert days.argmin() in (19, 20) and np.ptp(days) == pytest.approx(22, abs=0.01), "21 January"
    hours = np.arange(0, 24, 0.5)
    for longitude in (15.0, 22.5):
        warmest = hours[at(hours=100 * 24 + hours, longitude=longitude).argmax()]
        assert warmest + longitude / 15 == 15, "three hours after the sun's noon"
    assert at(latitude=50.0) < at(latitude=45.0)
    rng = np.random.default_rng(0)
    inputs = rng.uniform([0, 42, 8, 0], [8760, 53, 28, 3000], (50, 4))
    np.testing.assert_allclose(climate(torch.tensor(inputs)), temperature(*inputs.T), atol=1e-9)


def test_fields_have_the_covariance_of_the_kernel() -> None:
    """A draw is linear in its normal numbers: of all unit vectors it is the factor of the covariance."""
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
    squared = (d[0] / time) ** 2 + (111.2 * d[1] / space) ** 2 + (EAST * d[2] / space) ** 2
    return amplitude**2 * math.exp(-squared / 2)


def test_context_and_targets_are_every_point_of_a_patch_on_land_once() -> None:
    of = family()
    episodes = draw(12, of=of)
    metres = elevation.embedded_elevation().numpy()
    for e, (row, column) in enumerate(episodes.truth["corner"].tolist()):
        steps = episodes.truth["start"][e].numpy()
        patch = metres[row : row + 10, column : column + 10]
        land = np.argwhere(np.isfinite(patch))
        assert len(land) >= 50
        expected = {(6 * (steps[0] + t), r, c) for t in range(3) for r, c in land}
        found = []
        for points in (episodes.context, episodes.targets):
            x = of.physical(points.x[e : e + 1], episodes.truth["start"][e : e + 1, 0])[0][points.mask[e]].numpy()
            r, c = np.rint(2 * (x[:, 1] - LATITUDES[row])), np.rint(2 * (x[:, 2] - LONGITUDES[column]))
            np.testing.assert_allclose(x[:, 3], patch[r.astype(int), c.astype(int)], atol=1e-3)
            np.testing.assert_allclose(x[:, 1:3], np.c_[LATITUDES[row] + r / 2, LONGITUDES[column] + c / 2], atol=1e-5)
            found += zip(np.rint(x[:, 0]), r, c, strict=True)
        assert set(found) == expected and len(found) == len(expected) == 3 * len(land)
    assert (episodes.context.y[~episodes.context.mask] == 0).all() and episodes.targets.mask.sum() > 1500


def test_the_noise_and_the_climate_are_in_the_temperatures() -> None:
    """Without weather to speak of, what is left of a temperature after its climate is the noise."""
    of = family(cells=4, times=2, amplitude=(0.01, 0.01), noise=0.7)
    episodes = draw(400, of=of)
    x = of.physical(episodes.targets.x, episodes.truth["start"][:, 0])[episodes.targets.mask].numpy()
    y = (
        episodes.targets.y[episodes.targets.mask][:, 0].double().numpy() * of.scale.y_std.item()
        + of.scale.y_mean.item()
    )
    left = y - temperature(*x.T)
    assert stats.kstest(left, stats.norm(0, math.hypot(0.7, 0.01)).cdf).pvalue > 1e-3


def test_temperatures_are_standardised_by_land_from_january_to_june() -> None:
    of = family()
    metres = elevation.embedded_elevation().numpy()
    land = np.argwhere(np.isfinite(metres))
    expected = [temperature(6.0 * np.arange(HALF), LATITUDES[r], LONGITUDES[c], metres[r, c]) for r, c in land]
    squares, _ = integrate.quad(lambda log: math.exp(2 * log) / math.log(4), 0, math.log(4))
    assert of.scale.y_mean.item() == pytest.approx(np.mean(expected))
    assert of.scale.y_std.item() == pytest.approx(math.sqrt(np.var(expected) + squares))
    own = [(np.mean(v), np.std(v)) for v in (LATITUDES, LONGITUDES, metres[np.isfinite(metres)])]
    np.testing.assert_allclose(torch.stack([of.scale.x_mean, of.scale.x_std], 1)[1:], own)
    with_weather = draw(2000, 1, of=family(cells=3, times=1, max_related=0))
    spread = with_weather.context.y.square()
    assert abs(spread.mean() - 1) < 0.1, "patches begin everywhere, so that it is nearly so for them"


def test_the_two_clocks() -> None:
    by_patch = draw(20, of=family(targets=3))
    assert sorted(set(by_patch.context.x[by_patch.context.mask][:, 0].tolist())) == pytest.approx(
        [-(1.5**0.5), 0, 1.5**0.5]
    )
    of = family(targets=3, clock="training")
    in_year = draw(20, of=of.held_out())
    hours = 6.0 * (in_year.truth["start"][:, 0].numpy()[:, None] + np.arange(3))
    times = 6.0 * np.arange(HALF)
    own = (hours - times.mean()) / times.std()
    assert own.min() > 1.73 and own.max() < 5.26
    met = [(6.0 * step - times.mean()) / times.std() for step in (0, HALF - 1, YEAR - 1)]
    assert met == pytest.approx([-1.73, 1.73, 5.25], abs=5e-3), "as the docstring of `patches` has it"
    x = in_year.context.x[..., 0].numpy()[:, :, None]
    off = np.abs(x - own[:, None]).min(-1)
    assert off[in_year.context.mask.numpy()].max() < 1e-6
    assert torch.equal(by_patch.context.x[..., 1:], draw(20, of=of).context.x[..., 1:])
    one = Scale.of(1, elevation.embedded_elevation(), 0.0, 1.0)
    assert one.x_mean[0] == 0 and one.x_std[0] == 1, "a single time is left as it is"


@pytest.mark.parametrize(("sizes", "low", "high"), [("appendix", 3, 1), ("section", 100, 5)])
def test_sizes_have_the_distribution_of_the_paper(sizes: str, low: int, high: int) -> None:
    of = family(targets=1, related_sizes=sizes)
    episodes = draw(300, of=of)
    metres = elevation.embedded_elevation().isfinite()
    count = np.array([3 * int(metres[r : r + 10, c : c + 10].sum()) for r, c in episodes.truth["corner"].tolist()])
    own = episodes.context.counts.numpy()
    assert (own >= np.maximum(count // 100, 1)).all() and (own <= count // 3).all()
    whole = count == 300
    assert stats.chisquare(np.bincount((own[whole] - 3) * 7 // 98, minlength=7)).pvalue > 1e-3
    related = episodes.related.counts.numpy()
    there = related > 0
    assert (related[there] >= np.broadcast_to(np.maximum(count // low, 1)[:, None], there.shape)[there]).all()
    assert (related[there] <= np.broadcast_to((count // high)[:, None], there.shape)[there]).all()
    first, last = max(300 // low, 1), 300 // high
    inside = (related[whole][there[whole]] - first) * 6 // (last - first + 1)
    assert stats.chisquare(np.bincount(inside, minlength=6)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(there.sum(1), minlength=3)).pvalue > 1e-3
    assert of.related_points == last


@pytest.mark.parametrize(("sizes", "low", "high"), [("appendix", 5, 16), ("section", 1, 3)])
def test_every_size_is_drawn_as_often_as_any_other_to_the_very_largest(sizes: str, low: int, high: int) -> None:
    episodes = draw(of=family(cells=4, times=1, targets=1, related_sizes=sizes))
    metres = elevation.embedded_elevation().isfinite()
    whole = np.array([metres[r : r + 4, c : c + 4].all().item() for r, c in episodes.truth["corner"].tolist()])
    related = episodes.related.counts.numpy()[whole]
    for found, first, last in ((episodes.context.counts.numpy()[whole], 1, 5), (related[related > 0], low, high)):
        assert found.min() == first and found.max() == last
        assert stats.chisquare(np.bincount(found - first)).pvalue > 1e-3


def test_training_and_evaluation_share_no_time_and_patches_of_an_episode_are_independent() -> None:
    last = 2  # times of a patch
    for of, shift, first, end in (
        (SMALL, "none", 0, HALF),
        (SMALL.validation(), "none", 0, HALF),
        (SMALL.held_out(), "none", HALF, YEAR),
        (SMALL.held_out(), "january-june", 0, HALF),
    ):
        start = draw(500, of=of, shift=shift).truth["start"].numpy()
        assert first <= start.min() < first + 9 and end - last - 9 < start.max() <= end - last
        own = stats.uniform(first, end - last + 1 - first)
        assert stats.kstest(start[:, 0] + np.random.default_rng(0).random(len(start)), own.cdf).pvalue > 1e-3
        gaps = np.abs(start[:, [0, 0, 1]] - start[:, [1, 2, 2]]) - (last - 1)
        assert np.exp(-((6 * gaps.min() / 48) ** 2) / 2) <= 1e-6, "from the end of one to the beginning of the other"
    quarters = SMALL.held_out().strata(draw(300, of=SMALL.held_out()))
    assert {name: bool(inside.any()) for name, inside in quarters.items()} == {
        "january-march": False, "april-june": False, "july-september": True, "october-december": True,
    }  # fmt: skip
    assert (torch.stack([*quarters.values()]).sum(0) == 1).all()


def test_the_weathers_kernel_is_log_uniform_and_prompts_are_stratified() -> None:
    ranges = {"space": (100, 600), "time": (6, 48), "amplitude": (1, 4)}
    free = draw().truth
    prompts = SMALL.sample_prompts(Request(64, 10, torch.Generator().manual_seed(0)))
    for name, (low, high) in ranges.items():
        assert stats.kstest((free[name] / low).log() / math.log(high / low), "uniform").pvalue > 1e-3
        part = ((prompts.truth[name] / low).log() / math.log(high / low) * 64).floor()
        assert sorted(part.tolist()) == list(range(64))
    at_once = np.corrcoef([prompts.truth[name].log().numpy() for name in ranges])
    assert np.abs(at_once - np.eye(3)).max() < 0.4, "strata are paired at random"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"space": (600.0, 100.0)}, "smaller number first"),
        ({"noise": 0.0}, "noise"),
        ({"cells": 23}, "cells"),
        ({"time": (6.0, 400.0)}, "do not surely fit into half a year; lower it, or time"),
        ({"clock": "sun"}, "clock"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        family(**parameters)


def test_a_context_that_may_leave_nothing_to_predict_is_refused() -> None:
    assert (draw(50, 149, of=family(), shift="points-149").context.counts == 149).all()
    with pytest.raises(UsageError, match="as few as 150 points on land"):
        draw(2, 150, of=family(), shift="points-150")
