"""Untrained backbones for a task, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from iclbench.api import arguments
from iclbench.api.tasks import Task, checked_task
from iclbench.backbones.base import Backbone
from iclbench.backbones.image_backbone import ImageBackbone
from iclbench.config.resolution import RunConfig, resolve_tables
from iclbench.config.sizes import check_size
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.predictor import Predictor
from iclbench.core.trust import trust_typed
from iclbench.registry import BACKBONES, noun_of_points
from iclbench.store.rates import read_rates


@guarded
def run_config(
    task: Task,
    name: str,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    results: Path | None = None,
) -> RunConfig:
    """Return the configuration of a run, resolved as in the command `train`."""
    task, name, seed = checked_task(task), _checked_name(name), arguments.seed(seed)
    backbone_table, train_table = (
        arguments.settings(argument, {} if table is None else table)
        for argument, table in (("settings", settings), ("training", training))
    )
    trust_typed(name)
    check_size(task.name, name, task.preset, backbone_table, task.resolved[1])
    tables = {"backbone": backbone_table, "train": train_table}
    return resolve_tables(
        task.card,
        name,
        task.preset,
        seed,
        tables,
        prefix="",
        data_dir=task.data_dir,
        read_rates=partial(read_rates, results),
        resolved=task.resolved,
    )


def _checked_name(value: Any) -> str:
    """Return the argument if it is the name of a backbone.

    Raises:
        UsageError: the value is not a string, or names a class that other processes cannot import.
    """
    if isinstance(value, type):
        target = f"{value.__module__}:{value.__qualname__}"
    elif isinstance(value, str):
        target = value
    else:
        advice = "icl.fit trains a model object" if isinstance(value, Predictor) else "`iclbench list backbones`"
        raise UsageError(
            f"backbone: expected a name, like 'gpt2', got {arguments.brief_repr(value)} ({advice})", code="bad-value"
        )
    if target.partition(":")[0] == "__main__":
        raise UsageError(
            f"'{target}' is defined in this notebook or script, and no other process can import it: put the class into "
            "a module (my_net.py) and write 'my_net:Net', or train an instance, icl.fit(Net(...), task)",
            code="bad-value",
        )
    if isinstance(value, type):
        raise UsageError(
            f"backbone: expected a name, got {arguments.brief_repr(value)}; write '{target}'", code="bad-value"
        )
    return target


@guarded
def backbone(name: str, task: Task, *, seed: int = 0, **settings: Any) -> Backbone:
    """Build an untrained backbone for a task.

    Args:
        name: a name from `iclbench list backbones`, or `package.module:Class`.
        task: the task, which determines inputs, outputs and head.
        seed: seed of the initial weights. A run with this seed starts from the same weights.
        settings: settings of the backbone (`iclbench show NAME`). Without settings, the preset of the task determines
            the size.

    Raises:
        UsageError: the backbone or a setting does not exist, a value is not valid, or the size is missing from both the
            settings and the preset.

    >>> from iclbench.api.tasks import task
    >>> backbone("s4d", task("linear", "smoke"), layers=1, width=8).parameter_count
    473
    """
    return run_config(task, name, seed, settings).build(task.family)


def check_fits(model: Backbone, task: Task) -> None:
    """Raise `UsageError` if the inputs, outputs or head of a model differ from those of the task."""
    task = checked_task(task)
    for name in ("x_dim", "y_dim", "classes", "marks", "x_shape", "head"):
        model_value, task_value = getattr(model.shape, name), getattr(task.shape, name)
        if model_value != task_value:
            raise UsageError(
                f"the model was built for {name}={model_value}, but {task} has {name}={task_value}; build it for "
                "this task",
                code="not-applicable",
            )


def check_weight_values(model: torch.nn.Module) -> None:
    """Raise `UsageError` if weights are on the device `meta`, where they have no values."""
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise UsageError(
                f"weight '{name}' is on the device 'meta' and has no values; build the model on the cpu",
                code="bad-value",
            )


def check_precision(model: torch.nn.Module) -> None:
    """Raise `UsageError` if weights have no values, or if they are not float32, the dtype of the episodes."""
    check_weight_values(model)
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.dtype != torch.float32:
            raise UsageError(
                f"weight '{name}' is {weight.dtype}, but episodes are float32; pass model.float()", code="bad-value"
            )


def check_trainable(model: Backbone, task: Task) -> None:
    """Raise `UsageError` if a model cannot be trained on the task.

    The possible reasons are: the inputs, outputs or head of the model differ from those of the task; the model was
    built for the other question (on a task with the question `next`, a model for `targets` would see each target in its
    context); the model reads fewer examples than the task has; its weights have no gradients; or the precision of its
    weights differs from that of the episodes.
    """
    check_fits(model, task)
    check_precision(model)
    for name, weight in model.named_parameters():
        if weight.is_inference():
            raise UsageError(
                f"weight '{name}' was created in torch.inference_mode and has no gradients; build the model outside it",
                code="bad-value",
            )
    model_question, task_question = model.shape.question, task.shape.question
    if model_question != task_question:
        raise UsageError(
            f"the model was built for the question '{model_question}', but {task} has the question '{task_question}'; "
            "build it for this task",
            code="not-applicable",
        )
    examples = task.shape.longest - 1 if model.uses_related else task.config.points
    if reason := model.too_long(examples):
        noun = noun_of_points(task.config.family)
        raise UsageError(
            f"the model does not support the {examples} {noun} of {task}: {reason}; build it for this task",
            code="not-applicable",
        )


def registered_name(model: Predictor) -> str | None:
    """Return the registered name of a model's class and settings, which may be a variant; None if no name matches."""
    inner: Any = model.backbone if isinstance(model, ImageBackbone) else model
    target = f"{type(inner).__module__}:{type(inner).__qualname__}"
    for name, entry in sorted(BACKBONES.entries.items()):
        frozen_settings = BACKBONES.variant(name).frozen if entry.package == "iclbench" else {}
        if entry.target == target and all(
            getattr(inner.settings, key, None) == value for key, value in frozen_settings.items()
        ):
            return name
    return None
