"""Tables of learning rates that `iclbench tune` has chosen, by preset, task and contestant.

`grids/rates/PRESET.toml` is the shipped table for the shipped tasks. The rates in the table of a results folder
(`iclbench.store.rates`) override the shipped table. The rates of both tables override the task card, and the user's
options override all of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from iclbench.config.cards import ByBackbone, Preset, card_names, cards_folder, load_task, read_card
from iclbench.core.settings import BaseSettings, Decay, NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.registry import BACKBONES


class TunedSettings(BaseSettings):
    """Training settings that were chosen for one contestant; other settings are those of the preset.

    Attributes:
        lr: peak learning rate.
        optimiser: adam or adamw.
        warmup: number of steps during which the learning rate rises from 0.
        weight_decay: weight decay of AdamW.
        betas: the two decay rates of Adam.
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
        """The chosen settings as a table `train`."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"tried"})


class Tuning(BaseSettings):
    """Chosen settings for some tasks, and a description of the training runs on which the choice is based.

    Attributes:
        tasks: names of the tasks that use the settings.
        on: the task of the training runs, if several tasks use its settings.
        steps: number of steps of each training run.
        budget: number of parameters of each backbone (default: the preset has no budget).
        seeds: number of training runs for each learning rate, with different seeds.
        how: the criterion of the choice and further remarks.
        train: the chosen settings, by contestant.
    """

    tasks: Annotated[list[str], Field(min_length=1)]
    on: str = ""
    steps: PositiveInt
    budget: PositiveInt | None = None
    seeds: PositiveInt
    how: str = ""
    train: Annotated[dict[str, TunedSettings], ByBackbone]


class RateTable(BaseSettings):
    """A table of learning rates for one preset.

    Attributes:
        tuned: the chosen settings. Each contestant has at most one entry per task.
    """

    tuned: list[Tuning] = []

    @model_validator(mode="after")
    def _check_duplicates(self) -> RateTable:
        pairs: set[tuple[str, str]] = set()
        for tuning in self.tuned:
            for pair in ((task, contestant) for task in tuning.tasks for contestant in tuning.train):
                if pair in pairs:
                    raise ValueError(f"two rates for '{pair[1]}' on task '{pair[0]}'; remove one of them")
                pairs.add(pair)
        return self

    def settings(self, task: str) -> dict[str, dict[str, Any]]:
        """Return the chosen settings for a task, by contestant."""
        tables = (tuning.train for tuning in self.tuned if task in tuning.tasks)
        return {contestant: choice.settings for table in tables for contestant, choice in table.items()}

    def tuning_tasks(self, task: str) -> dict[str, str]:
        """Return the tasks on which the settings for a task were chosen, by contestant."""
        tunings = (tuning for tuning in self.tuned if task in tuning.tasks)
        return {contestant: tuning.on or task for tuning in tunings for contestant in tuning.train}


def shipped_path(preset: str) -> Path:
    """Return the path of the shipped table for a preset, which may not exist."""
    return cards_folder("grids") / "rates" / f"{preset}.toml"


def read_table(path: Path) -> RateTable:
    """Read a table, which is empty if the file does not exist; raise `UsageError` if it is not valid."""
    return read_card(path, RateTable) if path.is_file() else RateTable()


def tuning_task(preset: str, task: str) -> str:
    """Return the task on which the shipped rates for a task were chosen: the same task or a similar task."""
    tunings = read_table(shipped_path(preset)).tuned
    return next((tuning.on for tuning in tunings if task in tuning.tasks and tuning.on), task)


@dataclass(frozen=True)
class Rates:
    """Training settings that were chosen for one task at one preset.

    Attributes:
        chosen_settings: the settings, by contestant.
        tuning_tasks: the task on which the settings were chosen, by contestant.
    """

    chosen_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuning_tasks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, preset: str, task: str, card: str | None = None, results_table: RateTable | None = None) -> Rates:
        """Return the rates of the shipped table, overridden by rates in the table of a results folder.

        Args:
            preset: name of the preset.
            task: name of the task card.
            card: hash of the card, with or without monitoring settings. It distinguishes a user's task from a shipped
                task with the same name (default: the hash of the shipped card).
            results_table: the table of the results folder for this preset, or None.

        Raises:
            UsageError: the shipped table is not valid.
        """
        is_shipped = task in card_names("tasks")
        if is_shipped and card is not None:
            shipped_card = load_task(task)[1]
            is_shipped = card in (shipped_card.hash_without_monitoring, shipped_card.hash)
        shipped = read_table(shipped_path(preset)) if is_shipped else RateTable()
        local = results_table or RateTable()
        return cls(
            {**shipped.settings(task), **local.settings(task)},
            {**shipped.tuning_tasks(task), **local.tuning_tasks(task)},
        )

    @classmethod
    def of_table(cls, table: RateTable, task: str) -> Rates:
        """Return the rates of one table."""
        return cls(table.settings(task), table.tuning_tasks(task))

    def settings(self, backbone: str) -> Mapping[str, Any]:
        """Return the chosen settings of a backbone as a table `train`.

        A variant that was not tuned uses the settings of its backbone.
        """
        names = [name for name in BACKBONES.names_in_cards(backbone) if name in self.chosen_settings]
        return self.chosen_settings[names[-1]] if names else {}

    def is_chosen(self, backbone: str, train: Mapping[str, Any]) -> bool:
        """Return whether training settings include the chosen settings of a backbone or variant."""
        settings = self.chosen_settings.get(backbone)
        return settings is not None and all(train.get(key) == value for key, value in settings.items())


def learning_rate(preset: Preset, rates: Rates, contestant: str) -> float | None:
    """Return the default learning rate of a backbone or variant; None if the preset does not define its size."""
    names = BACKBONES.names_in_cards(contestant) if contestant in BACKBONES.entries else [contestant]
    if preset.budget is None and not any(name in preset.backbones for name in names):
        return None
    card_rates = [preset.train_for[name]["lr"] for name in names if "lr" in preset.train_for.get(name, {})]
    tuned_rates = [rates.chosen_settings[name]["lr"] for name in names if name in rates.chosen_settings]
    return float([preset.train.lr, *card_rates, *tuned_rates][-1])
