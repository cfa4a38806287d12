"""Pairs of backbones that a finding compares, named in a grid's card before they are trained.

What single seeds decide is not known from two of them. So a pair is trained from more seeds on the tasks that it is
named for, and what is claimed of it is claimed over trainings.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from iclbench.config.cards import PresetName, cards_folder, names, read_toml
from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, Once, SeedInt, validate
from iclbench.registry import BACKBONES, spelling


class Pair(BaseSettings):
    """Two backbones on some tasks.

    Attributes:
        a: a backbone ...
        b: ... and another one; differences are the first one's score less the second one's.
        tasks: where they are compared.
        preset: at which size.
        seeds: that both are trained from; a claim needs all of them.
    """

    a: str
    b: str
    tasks: Annotated[list[str], Field(min_length=1), Once]
    preset: PresetName = "grid"
    seeds: Annotated[list[SeedInt], Field(min_length=3), Once] = [0, 1, 2, 3, 4]

    @field_validator("a", "b")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            BACKBONES.entry(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return spelling(value)

    @field_validator("tasks")
    @classmethod
    def _as_the_tables_have_them(cls, value: list[str]) -> list[str]:
        return [each if each.endswith(".toml") else canonical(each) for each in value]

    @model_validator(mode="after")
    def _two(self) -> Pair:
        if self.a == self.b:
            raise ValueError(f"a pair is of two backbones, got '{self.a}' twice")
        return self


@cache
def shipped_pairs() -> tuple[Pair, ...]:
    """The pairs of all shipped grids."""
    return tuple(_shipped())


def _shipped() -> Iterator[Pair]:
    for name in names("grids"):
        path = cards_folder("grids") / f"{name}.toml"
        for pair in read_toml(path).get("pairs", []):
            yield validate(Pair, pair, str(path))
