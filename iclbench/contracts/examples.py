"""Small backbones and example tasks to check contracts with. The tests and `iclbench check` use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from iclbench.backbones.base import Backbone
from iclbench.config.cards import BUDGET_TOLERANCE, deviation
from iclbench.config.sizes import nearest_settings
from iclbench.contracts.contract import example_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.seeds import global_stream
from iclbench.core.settings import validate
from iclbench.core.task import TaskShape

CLASSES, MARKS, OUTPUTS = 5, 3, 2
CONTEXT = 7
# Number of points in the longest prompt. It exceeds `CONTEXT`, since some contracts extend or repeat contexts.
LONGEST = 16
# Parameter budgets in ascending order. A backbone gets the first budget that its settings can meet.
BUDGETS = (4_000, 8_000, 16_000, 32_000)
# Settings for the number of samples of a latent variable. They affect the run time but not the number of parameters, so
# small values are used.
_SAMPLE_SETTINGS = ("samples", "train_samples")


def example_shape(head: str, related: int = 0) -> TaskShape:
    """Return the shape of an example task. The question is `next`, or `targets` with related datasets."""
    question = "targets" if related else "next"
    if head == "event":
        return TaskShape(x_dim=0, points=LONGEST, y_dim=3, marks=MARKS, head=head, question=question)
    return TaskShape(
        x_dim=4,
        points=LONGEST,
        y_dim=OUTPUTS,
        classes=CLASSES if head == "categorical" else None,
        head=head,
        question=question,
        related=related,
        related_points=CONTEXT if related else 0,
    )


def stream_shape(head: str) -> TaskShape:
    """Return the shape of an example stream: tokens for the head `categorical`, vectors for other heads."""
    return replace(example_shape(head), x_dim=0)


def episodes_of(shape: TaskShape) -> Episodes:
    """Return random episodes for a task."""
    return example_episodes(
        dim=shape.x_dim,
        points=CONTEXT,
        outputs=shape.y_dim,
        classes=shape.classes,
        marks=shape.marks,
        related=shape.related,
    )


def small_settings(
    name: str, cls: type[Backbone], fixed: Mapping[str, Any], shape: TaskShape | None = None
) -> dict[str, Any]:
    """Return settings that give a backbone a few thousand parameters, or its defaults if its size cannot be changed.

    Args:
        name: name of the backbone, for messages.
        cls: class of the backbone.
        fixed: settings that do not change.
        shape: the task for which the parameters are counted (default: the example task of the first head).
    """
    shape = example_shape(cls.heads[0]) if shape is None else shape
    defaults = dict(cls.Settings(**fixed))
    fixed = {key: 3 for key in _SAMPLE_SETTINGS if isinstance(defaults.get(key), int)} | dict(fixed)
    for budget in BUDGETS:
        settings, parameters = nearest_settings(name, cls, budget, shape, fixed)
        if parameters is None or abs(deviation(parameters, budget)) <= BUDGET_TOLERANCE:
            break
    return settings


def build(name: str, cls: type[Backbone], settings: Mapping[str, Any], shape: TaskShape) -> Backbone:
    """Build a backbone in evaluation mode. Parameters that start at 0 get random values."""
    validated_settings = validate(cls.Settings, settings, f"backbone '{name}'")
    with global_stream(0, "weights"):
        return randomise_zeros(cls(validated_settings, shape)).eval()


def randomise_zeros(backbone: Backbone) -> Backbone:
    """Draw random values for parameters that start at 0. With zeros, errors in other layers would not affect the
    answers."""
    for weight in backbone.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.3)
    return backbone
