"""The search over learning rates, and the choice of a rate."""

import pytest

from iclbench.tuning.curves import Point
from iclbench.tuning.search import RateSearch, find_best, find_choice, neighbour_rate, not_different

RATES = [1e-3, 3e-3, 1e-2]


def points(values: dict[float, float | None]) -> list[Point]:
    return [Point({"lr": rate}, value) for rate, value in values.items()]


def next_rates(search: RateSearch, values: dict[float, float | None]) -> list[float]:
    return [settings["lr"] for settings in search.next(points(values))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, RATES),
        ({3e-3: 0.5}, [1e-3, 1e-2]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.6}, []),
        ({1e-3: 0.3, 3e-3: 0.4, 1e-2: 0.6}, [3e-4]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.3}, [3e-2]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.3, 3e-2: 0.2}, [1e-1]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.3, 3e-2: 0.2, 1e-1: 0.1}, []),  # the range has been extended twice already
        ({1e-3: 0.3, 3e-3: 0.4, 1e-2: 0.6, 3e-4: 0.2, 1e-4: 0.1}, []),
        ({1e-3: None, 3e-3: None, 1e-2: None}, [3e-4]),  # all rates diverged, so smaller ones are tried
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: None}, []),  # the range is not extended beyond a rate that diverged
    ],
)
def test_the_range_is_extended_if_the_best_rate_is_at_its_edge(
    values: dict[float, float | None], expected: list[float]
) -> None:
    assert next_rates(RateSearch(RATES, 1), values) == expected
    negated = {rate: None if value is None else -value for rate, value in values.items()}
    assert next_rates(RateSearch(RATES, -1), negated) == expected


def test_rates_of_earlier_commands_count_as_points_of_the_search() -> None:
    all_points = points({1e-3: 0.5, 2e-3: 0.4, 3e-3: 0.5})
    assert RateSearch([2e-3], 1).next(all_points) == []
    assert find_best(all_points, 1) == all_points[1] and not RateSearch([2e-3], 1).is_at_edge(all_points)


def test_ties_are_resolved_by_the_smallest_rate_and_failed_rates_are_ignored() -> None:
    assert find_best(points({1e-2: 0.9, 3e-3: 0.9, 1e-3: None}), 1) == Point({"lr": 3e-3}, 0.9)
    assert find_best(points({1e-2: None}), 1) is None


def test_the_smallest_rate_within_one_standard_error_of_the_best_is_chosen() -> None:
    near, far = Point({"lr": 1e-3}, 1.05, 0.5), Point({"lr": 3e-4}, 1.07, 0.01)
    best_point, worse_rate = Point({"lr": 1e-2}, 1.0, 0.12), Point({"lr": 3e-2}, 1.01, 0.1)
    all_points = [far, near, best_point, worse_rate, Point({"lr": 1e-4}, None)]
    assert find_choice(all_points, 1, seeds=4) == near, "0.12 / 2 = 0.06"
    assert find_choice(all_points, 1, seeds=2) == far, "0.12 / sqrt(2) = 0.085"
    assert find_choice(all_points, 1, seeds=16) == best_point
    negated_points = [Point(each.settings, None if each.value is None else -each.value, each.sd) for each in all_points]
    assert find_choice(negated_points, -1, seeds=4).settings == near.settings  # type: ignore[union-attr]
    assert find_choice([Point({"lr": 1e-2}, 1.0)], 1, seeds=1) == Point({"lr": 1e-2}, 1.0)
    assert find_choice([Point({"lr": 1e-2}, None)], 1, seeds=3) is None


def test_neighbours_of_rates_in_the_series_1_3_10_stay_in_the_series() -> None:
    rate, rates = 1e-3, []
    for _ in range(4):
        rate = neighbour_rate(rate, 1)
        rates.append(rate)
    assert rates == [3e-3, 1e-2, 3e-2, 1e-1]
    assert neighbour_rate(5e-3, -1) == pytest.approx(5e-3 / 3, rel=0.05) and neighbour_rate(5e-3, 1) == 1.5e-2


def test_rates_are_compared_with_the_chosen_rate_by_a_t_test() -> None:
    """For three seeds with a standard deviation of 0.3, Welch's t is 0.8 for means of 1 and 1.2, and 12 for means of 1
    and 4.
    """
    chosen_point = Point({"lr": 0.003}, 1.0, 0.3)
    near, far, failed = Point({"lr": 0.01}, 1.2, 0.3), Point({"lr": 0.03}, 4.0, 0.3), Point({"lr": 0.1}, None)
    assert not_different([chosen_point, near, far, failed], chosen_point, 3) == [near]
    one_seed = [chosen_point, Point({"lr": 0.01}, 1.2)]
    assert not_different(one_seed, chosen_point, 1), "a single seed cannot show a significant difference"
    assert not_different([Point({"lr": 0.01}, 1.2, 0.0)], Point({"lr": 0.003}, 1.0, 0.0), 3) == []
