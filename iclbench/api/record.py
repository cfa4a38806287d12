"""The training record of a model in memory, which `fit` writes and `evaluate` reports in its rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel

from iclbench.backbones.base import Backbone
from iclbench.backbones.image_backbone import ImageBackbone
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.core.settings import Role
from iclbench.store import identity

# The record is an attribute of the model, so that it is copied and pickled with the model.
_ATTRIBUTE = "_trained_in_memory"


@dataclass(frozen=True)
class MemoryTraining:
    """One training run in memory.

    Attributes:
        task: the training task.
        preset: the preset of the task.
        settings: the training settings.
        seed: the training seed.
        steps: number of finished steps; after an interruption, fewer than `settings.steps`.
    """

    task: TaskConfig
    preset: str
    settings: TrainSettings
    seed: int
    steps: int


def add_training(model: Backbone, training: MemoryTraining) -> None:
    """Add a training run to the record of a model."""
    setattr(model, _ATTRIBUTE, (*trainings(model), training))


def trainings(model: Backbone) -> tuple[MemoryTraining, ...]:
    """Return the training runs of a model in memory, in order."""
    record: tuple[MemoryTraining, ...] = getattr(model, _ATTRIBUTE, ())
    return record


def variant_of(model: Backbone) -> str:
    """Return a hash of class, settings, task and training, which is the same for all seeds."""
    inner: Any = model.backbone if isinstance(model, ImageBackbone) else model
    settings = inner.settings
    return identity.in_memory_id(
        model=f"{type(inner).__module__}:{type(inner).__qualname__}",
        settings=settings.model_dump(mode="json") if isinstance(settings, BaseModel) else repr(settings),
        shape=asdict(model.shape),
        trained=[_training_parts(training) for training in trainings(model)],
    )


def _training_parts(training: MemoryTraining) -> dict[str, Any]:
    """Return everything that determines the weights, except the seed."""
    task = training.task.model_dump(mode="json", include=set(TaskConfig.with_role(Role.TRAINED)))
    train = training.settings.model_dump(mode="json", exclude=set(TrainSettings.with_role(Role.MONITORING)))
    reached_steps = {"reached": training.steps} if training.steps != training.settings.steps else {}
    return {"preset": training.preset, "task": task, "train": train, **reached_steps}
