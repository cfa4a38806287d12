"""Tables of learning rates: what `iclbench tune` has chosen, by preset, task and contestant.

`grids/rates/PRESET.toml` is shipped and holds for the tasks that are; `RESULTS/rates/PRESET.toml` goes over it, for
whoever has tuned his own. A table goes over what a task's card says, and what a user types goes over the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from iclbench.config.cards import ByBackbone, Preset, cards_folder, load_task, names, read_card
from iclbench.core.settings import BaseSettings, Decay, NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.registry import BACKBONES


class Chosen(BaseSettings):
    """Settings of training that were chosen for one contestant; those left out are the preset's.

    Attributes:
        lr: learning rate at its highest.
        optimiser: adam or adamw.
        warmup: steps over which the learning rate rises from 0.
        weight_decay: of AdamW.
        betas: Adam's two rates of decay.
        tried: the learning rates that were tried.
    """

    lr: PositiveFloat
    optimiser: Literal["adam", "adamw"] | None = None
    warmup: Annotated[int, Field(ge=0)] | None = None
    weight_decay: NonNegativeFloat | None = None
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] | None = None
    tried: list[PositiveFloat] = []

    @property
    def settings(self) -> dict[str, Any]:
        """Those that were chosen, as a `train` table says them."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"tried"})


class Tuning(BaseSettings):
    """What was chosen for some tasks, and how it was found.

    Attributes:
        tasks: names of the tasks that it holds for.
        on: the task that was trained on, where it is one for several.
        steps: of every training.
        budget: parameters of every backbone; left out: the preset has no budget.
        seeds: trainings of every learning rate, each from another seed.
        how: what decided, and what else a reader should know.
        train: by contestant, what was chosen.
    """

    tasks: Annotated[list[str], Field(min_length=1)]
    on: str = ""
    steps: PositiveInt
    budget: PositiveInt | None = None
    seeds: PositiveInt
    how: str = ""
    train: Annotated[dict[str, Chosen], ByBackbone]


class RateTable(BaseSettings):
    """A table of learning rates of one preset.

    Attributes:
        tuned: what was chosen; a contestant stands once for every task.
    """

    tuned: list[Tuning] = []

    @model_validator(mode="after")
    def _each_once(self) -> RateTable:
        seen: set[tuple[str, str]] = set()
        for tuning in self.tuned:
            for pair in ((task, contestant) for task in tuning.tasks for contestant in tuning.train):
                if pair in seen:
                    raise ValueError(f"two rates for '{pair[1]}' on task '{pair[0]}'; leave one of them")
                seen.add(pair)
        return self

    def of(self, task: str) -> dict[str, dict[str, Any]]:
        """By contestant, what was chosen for a task."""
        each = (tuning.train for tuning in self.tuned if task in tuning.tasks)
        return {contestant: chosen.settings for train in each for contestant, chosen in train.items()}

    def on(self, task: str) -> dict[str, str]:
        """By contestant, the task that its rate for this task was chosen on."""
        return {name: each.on or task for each in self.tuned if task in each.tasks for name in each.train}


def shipped_path(preset: str) -> Path:
    """The table that is shipped for a preset; not every one has one."""
    return cards_folder("grids") / "rates" / f"{preset}.toml"


def own_path(results: Path, preset: str) -> Path:
    """The table of a results folder."""
    return results / "rates" / f"{preset}.toml"


def read_table(path: Path) -> RateTable:
    """A table, empty where there is no such file; raises `UsageError` when it does not hold."""
    return read_card(path, RateTable) if path.is_file() else RateTable()


def tuned_on(preset: str, task: str) -> str:
    """The task whose rates hold for a task in the shipped table: itself, or the one that was tuned in its place."""
    tunings = read_table(shipped_path(preset)).tuned
    return next((each.on for each in tunings if task in each.tasks and each.on), task)


@dataclass(frozen=True)
class Rates:
    """Settings of training that were chosen for one task at one preset.

    Attributes:
        chosen: by contestant.
        on: by contestant, the task that this was chosen on.
    """

    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    on: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, preset: str, task: str, card: str | None = None, results: Path | None = None) -> Rates:
        """Those of the tables there are.

        Args:
            preset: its name.
            task: the name of the task's card.
            card: the card's hash, be it the one without what only looks at training, by which a task of the user's own
                that goes by the name of a shipped one is told from it; None: it is the shipped one.
            results: the results folder, if there is one.

        Raises:
            UsageError: a table does not hold.
        """
        is_shipped = task in names("tasks")
        if is_shipped and card is not None:
            known = load_task(task)[1]
            is_shipped = card == known.unobserved or card == known.hash
        shipped = read_table(shipped_path(preset)) if is_shipped else RateTable()
        own = cls() if results is None else cls.own(results, preset, task)
        return cls({**shipped.of(task), **own.chosen}, {**shipped.on(task), **own.on})

    @classmethod
    def own(cls, results: Path, preset: str, task: str) -> Rates:
        """Those of a results folder alone."""
        table = read_table(own_path(results, preset))
        return cls(table.of(task), table.on(task))

    def settings(self, backbone: str) -> Mapping[str, Any]:
        """What was chosen for a backbone, as a `train` table says it: for a variant that nobody tuned what was chosen
        for its backbone."""
        known = [self.chosen[name] for name in BACKBONES.names_in_cards(backbone) if name in self.chosen]
        return known[-1] if known else {}

    def is_chosen(self, backbone: str, train: Mapping[str, Any]) -> bool:
        """Whether these are the settings that were chosen for a backbone; for a variant, under its own name."""
        chosen = self.chosen.get(backbone)
        return chosen is not None and all(train.get(key) == value for key, value in chosen.items())


def learning_rate(preset: Preset, rates: Rates, contestant: str) -> float | None:
    """The rate that a backbone or a variant is trained with where nobody types one; None: it is not one that the
    preset has a size for."""
    known = BACKBONES.names_in_cards(contestant) if contestant in BACKBONES.entries else [contestant]
    if preset.budget is None and not any(name in preset.backbones for name in known):
        return None
    of_card = [preset.train_for[name]["lr"] for name in known if "lr" in preset.train_for.get(name, {})]
    tuned = [rates.chosen[name]["lr"] for name in known if name in rates.chosen]
    return float([preset.train.lr, *of_card, *tuned][-1])
