"""The parts of a training step: the episodes, the precision of the loss, the optimiser and the update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from iclbench.backbones.base import Backbone
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.core.answers import check_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.plugins import plugin_errors
from iclbench.core.seeds import generator
from iclbench.families.base import Family
from iclbench.families.request import Request


@dataclass(frozen=True)
class TrainingData:
    """The source of training episodes.

    Attributes:
        family: the family, with its parameters.
        points: number of points in an episode at the end of the curriculum.
        context_targets: whether the context points are also targets.
    """

    family: Family
    points: int
    context_targets: bool = False

    @classmethod
    def of(cls, task: TaskConfig, family: Family) -> TrainingData:
        """Return the training data of a task with its family."""
        return cls(family, task.point_count(task.points), task.context_targets)

    def batch(self, settings: TrainSettings, seed: int, step: int, device: str = "cpu") -> Episodes:
        """Draw the episodes of one step. They depend only on the seed and the step; the curriculum sets their size."""
        curriculum, family = settings.curriculum, self.family
        dims = curriculum.dims.at(step, family.x_dim) if curriculum.dims else None
        size = curriculum.points.at(step, self.points) if curriculum.points else self.points
        request = Request(settings.batch, size, generator(seed, "data", step, device=device), active_dims=dims)
        with plugin_errors(family):
            episodes = family.sample(request)
        check_episodes(family, "sample", episodes)
        return episodes.with_context_targets() if self.context_targets else episodes


def make_optimiser(backbone: Backbone, settings: TrainSettings) -> torch.optim.Optimizer:
    """Create a fused Adam or AdamW optimiser for the backbone's parameter groups."""
    cls = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    groups = backbone.parameter_groups()
    return cls(groups, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)


def autocast(settings: TrainSettings, device: str) -> contextlib.AbstractContextManager[object]:
    """Return the context manager that sets the precision of the forward pass."""
    if settings.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def descend(
    loss: torch.Tensor,
    backbone: Backbone,
    optimiser: torch.optim.Optimizer,
    clip: float,
    sum_gradients: Callable[[Backbone], None] = lambda backbone: None,
) -> None:
    """Update the weights of the backbone with the gradient of the loss.

    Args:
        loss: the loss of this process's part of the batch.
        backbone: the backbone.
        optimiser: its optimiser.
        clip: maximum norm of the gradient; 0 for no limit.
        sum_gradients: sums the gradients over all processes.
    """
    optimiser.zero_grad(set_to_none=True)
    with plugin_errors(backbone):
        loss.backward()
    sum_gradients(backbone)
    if clip:
        torch.nn.utils.clip_grad_norm_(backbone.parameters(), clip)
    optimiser.step()
