"""The training record of a model in memory: written by `fit`, reported in the rows of `evaluate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel

from iclbench.backbones.base import Backbone
from iclbench.backbones.image_backbone import ImageBackbone
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.core.hashing import content_hash
from iclbench.core.settings import Role

# The attribute of a model with its record, so that copies and pickles of the model have it, too.
_ATTRIBUTE = "_trained_in_memory"


@dataclass(frozen=True)
class Fitted:
    """One training in memory.

    Attributes:
        task: the task of the training.
        preset: the preset of the task.
        training: the settings of training.
        seed: the seed of the training.
        steps: number of finished steps, fewer than those of `training` after an interruption.
    """

    task: TaskConfig
    preset: str
    training: TrainSettings
    seed: int
    steps: int


def note(model: Backbone, fitted: Fitted) -> None:
    """Add a training to the record of a model."""
    setattr(model, _ATTRIBUTE, (*trainings(model), fitted))


def trainings(model: Backbone) -> tuple[Fitted, ...]:
    """The trainings of a model in memory, in order."""
    record: tuple[Fitted, ...] = getattr(model, _ATTRIBUTE, ())
    return record


def variant_of(model: Backbone) -> str:
    """Hash of class, settings, task and training, the same for all seeds."""
    inner: Any = model.backbone if isinstance(model, ImageBackbone) else model
    settings = inner.settings
    parts = {
        "class": f"{type(inner).__module__}:{type(inner).__qualname__}",
        "settings": settings.model_dump(mode="json") if isinstance(settings, BaseModel) else repr(settings),
        "shape": asdict(model.shape),
        "trained": [_training_parts(fitted) for fitted in trainings(model)],
    }
    return content_hash(parts, 8)


def _training_parts(fitted: Fitted) -> dict[str, Any]:
    """All that determines the weights, except the seed."""
    task = fitted.task.model_dump(mode="json", include=set(TaskConfig.with_role(Role.TRAINED)))
    train = fitted.training.model_dump(mode="json", exclude=set(TrainSettings.with_role(Role.MONITORING)))
    reached = {"reached": fitted.steps} if fitted.steps != fitted.training.steps else {}
    return {"preset": fitted.preset, "task": task, "train": train, **reached}
