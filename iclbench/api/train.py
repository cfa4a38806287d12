"""Training: in memory, or as a run in a results folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from iclbench.api import arguments
from iclbench.api.models import check_trains, configured, registered_name
from iclbench.api.progress import progress_bar
from iclbench.api.record import Fitted, note
from iclbench.api.tasks import Task, given_task
from iclbench.backbones.base import Backbone
from iclbench.config.rates import Rates
from iclbench.config.resolution import RunConfig, resolve_training
from iclbench.core.context import Context
from iclbench.core.devices import chosen_device
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.progress import Update
from iclbench.evaluation.reported_training import train_reported
from iclbench.store.runs import Run, create, keeping_rate
from iclbench.training.fit import Callback, Training
from iclbench.training.fit import fit as fit_in_memory
from iclbench.training.processes import ALONE, Processes
from iclbench.training.trackers import check_trackers


@guarded
def fit(
    model: Backbone,
    task: Task,
    steps: int | None = None,
    lr: float | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> pd.DataFrame:
    """Train a backbone in place, in memory, on fresh episodes of a task.

    Args:
        model: what is trained; it is left on the device, in eval mode.
        task: draws the episodes; its preset says how to train.
        steps: so many instead of the preset's; warm-up and curriculum take the same share of them.
        lr: peak learning rate; None: that of the preset, for this backbone.
        seed: of the episodes and of whatever the loss draws.
        device: auto, cpu, cuda, cuda:1, ...
        progress: whether a bar is shown, on a terminal or in a notebook.
        callbacks: called with the `Training` after every step.
        settings: further ones, as behind `-o train.`: `batch=64, schedule="constant"`.

    Returns:
        A frame with the columns step, loss: the mean training loss of the steps up to each.

    Raises:
        UsageError: a setting does not fit, or the model is none that can be trained.
        TrainingDivergedError: the loss or a weight is NaN or infinite.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.tasks import task
    >>> small = task("linear", "smoke", dim=2)
    >>> fit(GPT2(small, layers=1, width=16), small, steps=20, log_every=10)["step"].tolist()
    [10, 20]
    """
    if not isinstance(model, Backbone):
        what = f"{model.__name__} itself; call it" if callable(model) and hasattr(model, "__name__") else None
        raise UsageError(
            f"fit trains backbones (icl.backbone(NAME, task), or your own), not {what or type(model).__name__}"
        )
    check_trains(model, given_task(task))
    seed, device = arguments.seed(seed), chosen_device(device)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise UsageError(f"callbacks: expected a list of functions, got {arguments.shown(callbacks)}")
    name, given = registered_name(model), arguments.settings("settings", settings)
    rates = Rates.of(task.preset, task.name, task.resolved[1].unobserved)
    if steps is not None:
        of_preset = resolve_training(task.config, task.sizes, name, {}, rates=rates)
        steps = arguments.integer("steps", steps)
        scaled = of_preset.in_steps(steps) | {"log_every": min(of_preset.log_every, max(1, steps // 20))}
        if isinstance(own := given.get("curriculum"), Mapping) and own:
            given["curriculum"] = {**scaled["curriculum"], **own}
        given = {**scaled, **given}
    given = {"evaluate_every": 0, "branches": []} | given  # a run's business; callbacks do the one here
    if lr is not None:
        given |= arguments.settings("settings", {"lr": lr})
    training = resolve_training(task.config, task.sizes, name, given, typed_as="", rates=rates)
    trained = task.config.on_data(task.data_dir)
    reached = 0
    with progress_bar(name or type(model).__name__, training.steps, progress) as update:

        def show(at: Training) -> None:
            nonlocal reached
            reached = at.progress.step
            if at.due(training.log_every):
                update(at.progress.step, f"loss {at.progress.losses[-1]:.4f}")

        try:
            found = fit_in_memory(
                model,
                task.config,
                training,
                [show, *callbacks],
                seed=seed,
                device=device,
                data_dir=task.data_dir,
            )
        finally:
            if reached:
                note(model, Fitted(trained, task.preset, training, seed, reached))
    return pd.DataFrame({"step": found.steps, "loss": found.losses})


@guarded
def train(
    task: Task,
    backbone: str,
    *,
    name: str | None = None,
    seed: int = 0,
    results: str | Path = "results",
    settings: Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    progress: bool = True,
    log: str | Sequence[str] = (),
    **training: Any,
) -> Run:
    """Train a run in a results folder, as `iclbench train`: the same call again continues where it stopped, and does
    nothing when it is finished. Unlike `fit`, other `steps` leave warm-up and curriculum as the preset has them.

    Args:
        task: the task at a preset.
        backbone: its name, or `package.module:Class`.
        name: of the run; default TASK-BACKBONE-PRESET-sSEED.
        seed: of weights and episodes.
        results: results folder.
        settings: of the backbone, as behind `-o backbone.`.
        device: auto, cpu, cuda, cuda:1, ...
        progress: whether a bar is shown.
        log: trackers that are told of losses and scores: tensorboard, wandb, mlflow.
        training: as behind `-o train.`: `steps=300, lr=1e-3`.

    Returns:
        The run; `load` gives its model.

    Raises:
        UsageError: something does not fit, or the folder holds another run of this name.
        Interrupted: Ctrl-C; a checkpoint was written.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> with TemporaryDirectory() as folder:
    ...     run = train(task("linear", "smoke"), "cnp", name="tour", results=folder, steps=5)
    ...     run.name, run.finished
    ('tour', True)
    """
    trackers, folder = arguments.names("log", log), arguments.folder("results", results)
    check_trackers(trackers)
    folder, name = folder.absolute(), None if name is None else arguments.text("name", name)
    config, device = configured(task, backbone, seed, settings, training, folder), chosen_device(device)
    config = keeping_rate(folder, config, name, training)
    context = Context(folder, task.data_dir, device)
    return train_run(config, name, context, partial(progress_bar, shown=progress), trackers)


@guarded
def train_run(
    config: RunConfig,
    name: str | None,
    context: Context,
    bar: Callable[[str, int], AbstractContextManager[Update]],
    trackers: Sequence[str] = (),
    processes: Processes = ALONE,
) -> Run:
    """Train a run to its end, from wherever it stopped; one that is finished is left as it is. What `train` and the
    command do once they know what is trained.

    Args:
        config: what is trained.
        name: of the run; None: TASK-BACKBONE-PRESET-sSEED.
        context: results folder, data, device.
        bar: what shows how far it has come, from a label and the number of steps.
        trackers: names of those that are told of losses and scores.
        processes: this process among those that train the run together.

    Raises:
        UsageError: the folder holds another run of this name.
        Interrupted: Ctrl-C; a checkpoint was written.
    """
    if not processes.leads:
        run = Run(context.results / "runs" / processes.agree())
        train_reported(run, context, lambda step, text: None, processes=processes)
        return run
    run = create(context.results, config, name, context.data_dir)
    processes.agree(run.name)
    if not run.finished or not processes.alone:
        with bar(run.name, run.config.train.steps) as update:
            train_reported(run, context, update, trackers, processes)
    return run
