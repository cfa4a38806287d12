"""Settings: roles of keys, and validation errors."""

import math
from typing import Annotated, Any

import pytest

from iclbench.core.settings import BaseSettings, NoSettings, PositiveInt, Role, SeedInt, Share, Unique, validate
from tests.refusals import refused


class Schedule(BaseSettings):
    share: Share = 0.5
    every: Annotated[PositiveInt, Role.TRAINED, Role.PROTOCOL] = 1


class Example(BaseSettings):
    points: Annotated[PositiveInt, Role.TRAINED]
    title: Annotated[str, Role.REPORTING] = ""
    seeds: Annotated[list[SeedInt], Unique] = [0]
    schedule: Schedule = Schedule()


def test_keys_are_selected_by_role() -> None:
    assert Example.with_role(Role.TRAINED) == {"points"}
    assert Example.with_role(Role.REPORTING) == {"title"}
    assert Schedule.with_role(Role.PROTOCOL) == Schedule.with_role(Role.TRAINED) == {"every"}
    assert Example.with_role(Role.LOCATION) == frozenset()


@pytest.mark.parametrize(
    ("values", "code", "names"),
    [
        ({}, "missing-value", ["points"]),
        ({"points": 0}, "bad-value", ["points", "greater than 0", "got 0"]),
        ({"points": "3"}, "bad-value", ["points", "integer", "got '3'"]),
        ({"pionts": 3}, "unknown-name", ["pionts", "'points'"]),
        ({"points": 3, "schedule": {"evry": 2}}, "unknown-name", ["schedule.evry", "schedule.every"]),
        ({"points": 3, "schedule": {"share": math.nan}}, "bad-value", ["schedule.share", "nan"]),
        ({"points": 3, "schedule": 4}, "bad-value", ["schedule", "table", "got 4"]),
        ({"points": 3, "seeds": [1, 2, 1]}, "duplicate", ["seeds", "1"]),
        ({"points": 3, "seeds": 1}, "bad-value", ["seeds", "list, [1]", "got 1"]),
        ({"points": 3, "a\nb": 1}, "unknown-name", ["'a b'"]),
    ],
)
def test_an_error_has_a_code_and_names_source_key_and_value(
    values: dict[str, Any], code: str, names: list[str]
) -> None:
    with refused(code, "mine", *names):
        validate(Example, values, "mine")


def test_settings_cannot_be_changed() -> None:
    settings = validate(Example, {"points": 3}, "mine")
    with pytest.raises(ValueError, match="points"):
        settings.points = 4


def test_keys_are_refused_for_a_class_without_settings() -> None:
    with refused("unknown-name", "mine", "points"):
        validate(NoSettings, {"points": 3}, "mine")
