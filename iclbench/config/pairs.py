"""Pairs of backbones that are compared over many training runs. A pair is registered in the card of a grid before
training.

Two seeds are too few to estimate how much a difference depends on the seed. A pair is therefore trained with more seeds
on its tasks, so that claims about the pair generalise over training runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from iclbench.config.cards import PresetName, card_names, cards_folder, read_toml
from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, SeedInt, Unique, validate
from iclbench.registry import BACKBONES, canonical_name


class Pair(BaseSettings):
    """Two backbones that are compared on some tasks.

    Attributes:
        a: the first backbone.
        b: the second backbone. Differences are the score of `a` minus the score of `b`.
        tasks: the tasks.
        preset: the preset of the tasks.
        seeds: seeds of the training runs of both backbones. A claim requires all of these runs.
    """

    a: str
    b: str
    tasks: Annotated[list[str], Field(min_length=1), Unique]
    preset: PresetName = "grid"
    seeds: Annotated[list[SeedInt], Field(min_length=3), Unique] = list(range(8))

    @field_validator("a", "b")
    @classmethod
    def _check_backbone(cls, value: str) -> str:
        try:
            BACKBONES.entry(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return canonical_name(value)

    @field_validator("tasks")
    @classmethod
    def _with_canonical_spelling(cls, value: list[str]) -> list[str]:
        return [task if task.endswith(".toml") else canonical(task) for task in value]

    @model_validator(mode="after")
    def _check_different(self) -> Pair:
        if self.a == self.b:
            raise ValueError(f"expected two different backbones, got '{self.a}' twice")
        return self


@cache
def shipped_pairs() -> tuple[Pair, ...]:
    """Return the pairs in all shipped grids."""
    return tuple(_read_pairs())


def _read_pairs() -> Iterator[Pair]:
    for name in card_names("grids"):
        path = cards_folder("grids") / f"{name}.toml"
        for pair in read_toml(path).get("pairs", []):
            yield validate(Pair, pair, str(path))
