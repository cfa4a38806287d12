"""Untrained backbones for a task, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from iclbench.api import arguments
from iclbench.api.tasks import Task, given_task
from iclbench.backbones.base import Backbone
from iclbench.backbones.image_backbone import ImageBackbone
from iclbench.config.resolution import RunConfig, resolve_tables
from iclbench.config.sizes import check_size
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.predictor import Predictor
from iclbench.core.trust import typed
from iclbench.registry import BACKBONES


@guarded
def configured(
    task: Task,
    name: str,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    results: Path | None = None,
) -> RunConfig:
    """The configuration of a run, as the command `train` would resolve it in a results folder."""
    task, name, seed = given_task(task), _given_name(name), arguments.seed(seed)
    of_backbone, of_training = (
        arguments.settings(kind, {} if given is None else given)
        for kind, given in (("settings", settings), ("training", training))
    )
    typed(name)
    check_size(task.name, name, task.preset, of_backbone, task.resolved[1])
    tables = {"backbone": of_backbone, "train": of_training}
    return resolve_tables(
        task.card,
        name,
        task.preset,
        seed,
        tables,
        typed_as="",
        data_dir=task.data_dir,
        results=results,
        resolved=task.resolved,
    )


def _given_name(value: Any) -> str:
    """The name of a backbone that a function was given.

    Raises:
        UsageError: it is no string, or names a class that nobody else could import.
    """
    if isinstance(value, type):
        target = f"{value.__module__}:{value.__qualname__}"
    elif isinstance(value, str):
        target = value
    else:
        advice = "icl.fit trains a model that is there" if isinstance(value, Predictor) else "`iclbench list backbones`"
        raise UsageError(f"backbone: expected a name, like 'gpt2', got {arguments.shown(value)} ({advice})")
    if target.partition(":")[0] == "__main__":
        raise UsageError(
            f"'{target}' lives in this notebook or script alone, and whoever loads the run cannot import it: put the "
            "class into a module (my_net.py) and write 'my_net:Net', or train an instance, icl.fit(Net(...), task)"
        )
    if target is not value:
        raise UsageError(f"backbone: expected a name, got {arguments.shown(value)}; write '{target}'")
    return target


@guarded
def backbone(name: str, task: Task, *, seed: int = 0, **settings: Any) -> Backbone:
    """An untrained backbone for a task.

    Args:
        name: `iclbench list backbones`, or `package.module:Class`.
        task: what it is built for.
        seed: of the initial weights: those of a run with this seed.
        settings: of the backbone (`iclbench show NAME`); where none are given, its size is that of the task's preset.

    Raises:
        UsageError: there is no such backbone or setting, a value does not fit, or nobody says how big it is to be.

    >>> from iclbench.api.tasks import task
    >>> backbone("s4d", task("linear", "smoke"), layers=1, width=8).parameter_count
    473
    """
    return configured(task, name, seed, settings).build(task.family)


def check_fits(model: Backbone, task: Task) -> None:
    """Raise `UsageError` where a model was built for other inputs, outputs or another head than the task has."""
    task = given_task(task)
    for name in ("x_dim", "y_dim", "classes", "marks", "x_shape", "head"):
        own, asked = getattr(model.shape, name), getattr(task.shape, name)
        if own != asked:
            raise UsageError(f"the model was built for {name}={own}, {task} has {name}={asked}; build it for this task")


def check_values(model: torch.nn.Module) -> None:
    """Raise `UsageError` where weights have no values."""
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise UsageError(f"weight '{name}' is on the device 'meta' and has no values; build the model on the cpu")


def check_precision(model: torch.nn.Module) -> None:
    """Raise `UsageError` where weights have another precision than episodes, or no values."""
    check_values(model)
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.dtype != torch.float32:
            raise UsageError(f"weight '{name}' is {weight.dtype} and episodes are float32; give model.float()")


def check_trains(model: Backbone, task: Task) -> None:
    """Raise `UsageError` where a model cannot be trained on the task: it does not fit, was built for the other question
    (under `next` every target would stand in its context), ends before the task's examples do, or has weights of
    another precision than the episodes or without gradients."""
    check_fits(model, task)
    check_precision(model)
    for name, weight in model.named_parameters():
        if weight.is_inference():
            raise UsageError(f"the model was built under torch.inference_mode ('{name}'); build it outside")
    own, asked = model.shape.question, task.shape.question
    if own != asked:
        raise UsageError(f"the model was built for the question '{own}', {task} asks '{asked}'; build it for this task")
    examples = task.shape.longest - 1 if model.uses_related else task.config.points
    if reason := model.too_long(examples):
        raise UsageError(f"{task} has {examples} examples, and of the model: {reason}; build it for this task")


def registered_name(model: Predictor) -> str | None:
    """The name under which a model's class and settings are registered, variants included; None: under none."""
    inner: Any = model.backbone if isinstance(model, ImageBackbone) else model
    target = f"{type(inner).__module__}:{type(inner).__qualname__}"
    for name, entry in sorted(BACKBONES.entries.items()):
        frozen = BACKBONES.variant(name).frozen if entry.package == "iclbench" else {}
        if entry.target == target and all(getattr(inner.settings, k, None) == v for k, v in frozen.items()):
            return name
    return None
