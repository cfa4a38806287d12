"""Settings: what a user may write, the role of each key, and one line for every mistake."""

import math
from typing import Annotated, Any

import pytest

from iclbench.core.errors import UsageError
from iclbench.core.settings import BaseSettings, NoSettings, Once, PositiveInt, Role, SeedInt, Share, validate


class Schedule(BaseSettings):
    share: Share = 0.5
    every: Annotated[PositiveInt, Role.TRAINED, Role.TYPED] = 1


class Example(BaseSettings):
    points: Annotated[PositiveInt, Role.TRAINED]
    title: Annotated[str, Role.REPORTING] = ""
    seeds: Annotated[list[SeedInt], Once] = [0]
    schedule: Schedule = Schedule()


def test_keys_are_found_by_their_role() -> None:
    assert Example.with_role(Role.TRAINED) == {"points"}
    assert Example.with_role(Role.REPORTING) == {"title"}
    assert Schedule.with_role(Role.TYPED) == Schedule.with_role(Role.TRAINED) == {"every"}
    assert Example.with_role(Role.LOCATION) == frozenset()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "mine: points: expected a whole number, but the key is missing"),
        ({"points": 0}, "mine: points: expected greater than 0, got 0"),
        ({"points": "3"}, "mine: points: expected a valid integer, got '3'"),
        ({"pionts": 3}, "mine: unknown key 'pionts'; did you mean 'points'"),
        ({"points": 3, "schedule": {"evry": 2}}, "unknown key 'schedule.evry'; did you mean 'schedule.every'"),
        ({"points": 3, "schedule": {"share": math.nan}}, "schedule.share: expected a finite number, got nan"),
        ({"points": 3, "schedule": 4}, "schedule: expected a table of keys, got 4"),
        ({"points": 3, "seeds": [1, 2, 1]}, "mine: seeds: 1 .* twice"),
        ({"points": 3, "seeds": 1}, r"seeds: expected a list, \[1\], got 1"),
        ({"points": 3, "a\nb": 1}, "unknown key 'a b'"),
    ],
)
def test_a_mistake_is_one_line_with_place_key_and_what_is_expected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        validate(Example, values, "mine")
    assert len(str(error.value).splitlines()) == 1


def test_settings_cannot_be_changed_and_nothing_can_be_set_where_there_is_none() -> None:
    checked = validate(Example, {"points": 3}, "mine")
    with pytest.raises(ValueError, match="frozen"):
        checked.points = 4
    with pytest.raises(UsageError, match="unknown key 'points'"):
        validate(NoSettings, {"points": 3}, "mine")
