"""Tasks: a task card at one preset, which samples episodes and determines the shape of backbones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from iclbench.api import arguments
from iclbench.config.cards import Preset, TaskCard
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.answers import check_episodes
from iclbench.core.devices import resolve_device
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.guard import guarded
from iclbench.core.memory import memory_advice
from iclbench.core.seeds import generator
from iclbench.core.task import TaskShape
from iclbench.families.base import Family
from iclbench.families.request import Request


@dataclass(frozen=True, eq=False)
class Task:
    """A task card at one preset, with the user's changes.

    Attributes:
        card: the name of the card, or a path to a `.toml` file.
        preset: smoke, grid, small or paper.
        changes: values that replace those of the card, with the keys of the option `-o task.KEY`.
        data_dir: folder of the family's data sets.
    """

    card: str
    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    data_dir: Path | None = None

    @cached_property
    @guarded
    def resolved(self) -> tuple[TaskConfig, TaskCard]:
        """The resolved task and its card. The card is read once, so later changes to the file have no effect."""
        return resolve_task(self.card, self.preset, self.changes, "task")

    @property
    @guarded
    def config(self) -> TaskConfig:
        """The resolved task."""
        return self.resolved[0]

    @cached_property
    @guarded
    def family(self) -> Family:
        """The family, which samples the episodes."""
        return self.config.build(self.data_dir)

    @cached_property
    @guarded
    def sizes(self) -> Preset:
        """The preset of the card, with sizes of backbones and training settings."""
        return self.resolved[1].preset(self.preset, self.config.name)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def baselines(self) -> list[str]:
        """The oracles and baselines of the card, which `iclbench eval` evaluates with every run."""
        return list(dict.fromkeys([*self.config.oracles, *self.config.baselines]))

    @property
    @guarded
    def shape(self) -> TaskShape:
        """The shape of the task's inputs and outputs, which backbones are built for."""
        return self.config.shape(self.family)

    @guarded
    def sample(
        self,
        episodes: int,
        seed: int = 0,
        *,
        shift: str = "none",
        points: int | None = None,
        device: str | torch.device = "cpu",
    ) -> Episodes:
        """Sample episodes; the same seed gives the same episodes.

        Args:
            episodes: B, the number of episodes.
            seed: seed of the samples. Training and evaluation use separate random streams.
            shift: a change of the distribution, from the list in `iclbench show TASK`.
            points: number of examples in context (default: the number that the shift sets, or the number in training).
            device: device of the tensors: auto, cpu, cuda, cuda:1, ...

        Returns:
            Episodes; `context.x`, for example, has shape `(B, N, Dx)`. With the question `next`, the last point is only
            a target, so N is the number of examples plus one.

        Raises:
            UsageError: the family does not have the shift, both the shift and `points` set the number of examples, or
                an argument has the wrong type or is out of range.
            OutOfMemoryError: memory is insufficient for the episodes.
        """
        parsed_shift = self.family.parse_shift(arguments.text("shift", shift))
        examples = parsed_shift.examples or self.config.points
        if points is not None:
            examples = arguments.integer("points", points)
            parsed_shift.with_examples(examples)  # raises an error if the shift also sets the number
        random_generator = generator(arguments.seed(seed), "sample", device=resolve_device(device))
        request = Request(
            arguments.integer("episodes", episodes),
            self.config.point_count(examples),
            random_generator,
            shift=parsed_shift.name,
        )
        with memory_advice("fewer episodes or points"):
            new_episodes = self.family.sample(request)
        check_episodes(self.family, "sample", new_episodes)
        return new_episodes

    def __repr__(self) -> str:
        changes = "".join(f", {key}={value!r}" for key, value in self.changes.items())
        return f"task({self.card!r}, preset={self.preset!r}{changes})"


@guarded
def task(name: str | Path, preset: str = "small", *, data_dir: str | Path | None = None, **changes: Any) -> Task:
    """Create a task from a task card.

    Args:
        name: name of the card (`iclbench list tasks`), or a path to a `.toml` file.
        preset: size of the task: smoke, grid, small or paper.
        data_dir: folder with your copies of data sets.
        changes: values that replace those of the card, with the keys of the option `-o task.KEY`, such as
            `dim=5, head="gaussian", points=20`.

    Raises:
        UsageError: the card, the preset or a key does not exist, or a value is not valid.

    >>> task("skewed-linear", preset="smoke", dim=5, head="gaussian").shape.x_dim
    5
    """
    card = str(name) if isinstance(name, Path) else arguments.text("name", name)
    new_task = Task(
        str(Path(card).absolute()) if card.endswith(".toml") else card,
        canonical(arguments.text("preset", preset)),
        arguments.settings("changes", changes),
        None if data_dir is None else arguments.folder("data_dir", data_dir).absolute(),
    )
    _ = new_task.family  # built here, so that an invalid value raises an error now
    return new_task


def checked_task(value: Any) -> Task:
    """Return the argument if it is a task.

    Raises:
        UsageError: the argument is not a task.
    """
    if isinstance(value, Task):
        return value
    advice = f"icl.task({value!r})" if isinstance(value, str) else "icl.task(NAME)"
    raise UsageError(f"task: expected a task, got {arguments.brief_repr(value)}; write {advice}", code="bad-value")
