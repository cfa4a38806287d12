"""What a model of a notebook was trained on: noted by `fit`, said by the rows of `evaluate`, as a run's are."""

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

# The attribute of a model that they stand in: copies and pickles of the model have them, too.
_NOTED = "_trained_in_memory"


@dataclass(frozen=True)
class Fitted:
    """One training in memory.

    Attributes:
        task: what it was on.
        preset: at which preset.
        training: how.
        seed: from which seed.
        steps: how many steps were done; fewer than those of `training` where it was interrupted.
    """

    task: TaskConfig
    preset: str
    training: TrainSettings
    seed: int
    steps: int


def note(model: Backbone, fitted: Fitted) -> None:
    """Note that a model is trained, after whatever it was trained on before."""
    setattr(model, _NOTED, (*trainings(model), fitted))


def trainings(model: Backbone) -> tuple[Fitted, ...]:
    """Where a model was trained in memory, the last one last."""
    found: tuple[Fitted, ...] = getattr(model, _NOTED, ())
    return found


def variant_of(model: Backbone) -> str:
    """Hash of what was trained, the same for all seeds: class, settings, task and training."""
    inner: Any = model.backbone if isinstance(model, ImageBackbone) else model
    settings = inner.settings
    parts = {
        "class": f"{type(inner).__module__}:{type(inner).__qualname__}",
        "settings": settings.model_dump(mode="json") if isinstance(settings, BaseModel) else repr(settings),
        "shape": asdict(model.shape),
        "trained": [_part(each) for each in trainings(model)],
    }
    return content_hash(parts, 8)


def _part(fitted: Fitted) -> dict[str, Any]:
    """What the weights depend on, but for the seed."""
    task = fitted.task.model_dump(mode="json", include=set(TaskConfig.with_role(Role.TRAINED)))
    train = fitted.training.model_dump(mode="json", exclude=set(TrainSettings.with_role(Role.MONITORING)))
    reached = {"reached": fitted.steps} if fitted.steps != fitted.training.steps else {}
    return {"preset": fitted.preset, "task": task, "train": train, **reached}
