"""Which learning rates are tried, and which one is chosen."""

import pytest

from iclbench.tuning.curves import Point
from iclbench.tuning.search import RateSearch, best, neighbour_rate, not_different

RATES = [1e-3, 3e-3, 1e-2]


def points(values: dict[float, float | None]) -> list[Point]:
    return [Point({"lr": rate}, value) for rate, value in values.items()]


def tried(search: RateSearch, values: dict[float, float | None]) -> list[float]:
    return [each["lr"] for each in search.next(points(values))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, RATES),
        ({3e-3: 0.5}, [1e-3, 1e-2]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.6}, []),
        ({1e-3: 0.3, 3e-3: 0.4, 1e-2: 0.6}, [3e-4]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.3}, [3e-2]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.3, 3e-2: 0.2}, [1e-1]),
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: 0.3, 3e-2: 0.2, 1e-1: 0.1}, []),  # twice, and no further
        ({1e-3: 0.3, 3e-3: 0.4, 1e-2: 0.6, 3e-4: 0.2, 1e-4: 0.1}, []),
        ({1e-3: None, 3e-3: None, 1e-2: None}, [3e-4]),  # all of them diverged: they are too large
        ({1e-3: 0.5, 3e-3: 0.4, 1e-2: None}, []),  # a rate that diverged is an edge that is known
    ],
)
def test_rates_are_widened_where_the_best_stands_at_the_edge(
    values: dict[float, float | None], expected: list[float]
) -> None:
    assert tried(RateSearch(RATES, 1), values) == expected
    turned = {rate: None if value is None else -value for rate, value in values.items()}
    assert tried(RateSearch(RATES, -1), turned) == expected


def test_the_whole_curve_counts_also_what_earlier_commands_tried() -> None:
    found = points({1e-3: 0.5, 2e-3: 0.4, 3e-3: 0.5})
    assert RateSearch([2e-3], 1).next(found) == []
    assert best(found, 1) == found[1] and not RateSearch([2e-3], 1).is_at_edge(found)


def test_of_equal_points_the_smallest_rate_is_chosen_and_of_failures_none() -> None:
    assert best(points({1e-2: 0.9, 3e-3: 0.9, 1e-3: None}), 1) == Point({"lr": 3e-3}, 0.9)
    assert best(points({1e-2: None}), 1) is None


def test_beyond_stays_in_the_series() -> None:
    rate, found = 1e-3, []
    for _ in range(4):
        rate = neighbour_rate(rate, 1)
        found.append(rate)
    assert found == [3e-3, 1e-2, 3e-2, 1e-1]
    assert neighbour_rate(5e-3, -1) == pytest.approx(5e-3 / 3, rel=0.05) and neighbour_rate(5e-3, 1) == 1.5e-2


def test_rates_whose_means_may_be_equal_are_named() -> None:
    """Welch's t of 1 against 1.2 with deviations of 0.3 over three seeds is 0.8, of 1 against 4 it is 12."""
    chosen = Point({"lr": 0.003}, 1.0, 0.3)
    near, far, failed = Point({"lr": 0.01}, 1.2, 0.3), Point({"lr": 0.03}, 4.0, 0.3), Point({"lr": 0.1}, None)
    assert not_different([chosen, near, far, failed], chosen, 3) == [near]
    assert not_different([chosen, Point({"lr": 0.01}, 1.2)], chosen, 1), "one seed cannot tell"
    assert not_different([Point({"lr": 0.01}, 1.2, 0.0)], Point({"lr": 0.003}, 1.0, 0.0), 3) == []
