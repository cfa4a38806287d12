"""Small backbones and the tasks that they are checked on, for the tests and for `iclbench check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from iclbench.backbones.base import Backbone
from iclbench.config.cards import TOLERANCE, deviation
from iclbench.config.sizes import nearest_settings
from iclbench.contracts.contract import example_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.seeds import global_stream
from iclbench.core.settings import validate
from iclbench.core.task import TaskShape

CLASSES, MARKS, OUTPUTS = 5, 3, 2
CONTEXT = 7
# Contracts extend a context or repeat it: the longest prompt that they ask has so many points.
LONGEST = 16
# Parameters of a backbone that is checked: the first of these that its settings meet.
BUDGETS = (4_000, 8_000, 16_000, 32_000)
# Settings of latent models: numbers of samples, on which time depends and size does not.
_SAMPLED = ("samples", "train_samples")


def example_shape(head: str, related: int = 0) -> TaskShape:
    """A task that the contracts are checked on: the question `next`, and `targets` where there are related datasets."""
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


def episodes_of(shape: TaskShape) -> Episodes:
    """Random episodes of such a task."""
    return example_episodes(
        points=CONTEXT, outputs=shape.y_dim, classes=shape.classes, marks=shape.marks, related=shape.related
    )


def small_settings(name: str, cls: type[Backbone], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings at which a backbone has a few thousand parameters, whatever its defaults are; those of a class that
    cannot be sized are its defaults.

    Args:
        name: the backbone's name, for messages.
        cls: its class.
        given: settings that are fixed.
    """
    shape = example_shape(cls.heads[0])
    defaults = dict(cls.Settings(**given))
    given = {key: 3 for key in _SAMPLED if isinstance(defaults.get(key), int)} | dict(given)
    for budget in BUDGETS:
        settings, parameters = nearest_settings(name, cls, budget, shape, given)
        if parameters is None or abs(deviation(parameters, budget)) <= TOLERANCE:
            break
    return settings


def build(name: str, cls: type[Backbone], settings: Mapping[str, Any], shape: TaskShape) -> Backbone:
    """A backbone for a task, ready to be checked."""
    checked = validate(cls.Settings, settings, f"backbone '{name}'")
    with global_stream(0, "weights"):
        return without_zeros(cls(checked, shape)).eval()


def without_zeros(backbone: Backbone) -> Backbone:
    """Draw the parameters that begin at 0: until they are trained, nothing behind them is part of the answers."""
    for weight in backbone.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.3)
    return backbone
