"""Training of a model in memory, or of a run in a results folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from iclbench.api import arguments
from iclbench.api.models import check_trainable, registered_name, run_config
from iclbench.api.progress import progress_bar
from iclbench.api.record import MemoryTraining, add_training
from iclbench.api.tasks import Task, checked_task
from iclbench.backbones.base import Backbone
from iclbench.config.rates import Rates
from iclbench.config.resolution import RunConfig, resolve_training
from iclbench.core.context import Context
from iclbench.core.devices import resolve_device
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.progress import Update
from iclbench.evaluation.run_training import train_with_monitor
from iclbench.store.runs import Run, create, with_rates_of_started_run
from iclbench.training.fit import Callback, Training
from iclbench.training.fit import fit as fit_in_memory
from iclbench.training.processes import SINGLE_PROCESS, Processes
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
    """Train a backbone in place and in memory, on newly sampled episodes of a task.

    Args:
        model: the backbone. After training, it is on the device and in eval mode.
        task: the task of the episodes. Its preset determines the training settings.
        steps: number of steps (default: as in the preset). Warm-up and curriculum are scaled accordingly.
        lr: peak learning rate (default: the rate of the preset for this backbone).
        seed: seed of the episodes and of random numbers in the loss.
        device: auto, cpu, cuda, cuda:1, ...
        progress: whether to show the progress on a terminal or in a notebook.
        callbacks: functions that are called after every step, with the `Training` as the argument.
        settings: other training settings, with the keys of the option `-o train.KEY`, such as
            `batch=64, schedule="constant"`.

    Returns:
        A frame with the columns `step` and `loss`. The loss is the mean training loss since the previous row.

    Raises:
        UsageError: a setting is not valid, or the model cannot be trained.
        TrainingDivergedError: the loss or a weight is NaN or infinite.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.tasks import task
    >>> small = task("linear", "smoke", dim=2)
    >>> fit(GPT2(small, layers=1, width=16), small, steps=20, log_every=10)["step"].tolist()
    [10, 20]
    """
    if not isinstance(model, Backbone):
        class_advice = (
            f"the class {model.__name__}; create an instance"
            if callable(model) and hasattr(model, "__name__")
            else None
        )
        raise UsageError(
            f"fit trains backbones (icl.backbone(NAME, task), or your own), not {class_advice or type(model).__name__}",
            code="bad-value",
        )
    check_trainable(model, checked_task(task))
    seed, device = arguments.seed(seed), resolve_device(device)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise UsageError(
            f"callbacks: expected a list of functions, got {arguments.brief_repr(callbacks)}", code="bad-value"
        )
    name, train_settings = registered_name(model), arguments.settings("settings", settings)
    rates = Rates.of(task.preset, task.name, task.resolved[1].hash_without_monitoring)
    if steps is not None:
        preset_training = resolve_training(task.config, task.sizes, name, {}, rates=rates)
        steps = arguments.integer("steps", steps)
        scaled_settings = preset_training.scaled_to(steps) | {
            "log_every": min(preset_training.log_every, max(1, steps // 20))
        }
        if isinstance(curriculum := train_settings.get("curriculum"), Mapping) and curriculum:
            train_settings["curriculum"] = {**scaled_settings["curriculum"], **curriculum}
        train_settings = {**scaled_settings, **train_settings}
    # Only runs are evaluated during training. In memory, callbacks can evaluate the model.
    train_settings = {"evaluate_every": 0, "branches": []} | train_settings
    if lr is not None:
        train_settings |= arguments.settings("settings", {"lr": lr})
    training = resolve_training(task.config, task.sizes, name, train_settings, prefix="", rates=rates)
    trained_task = task.config.on_data(task.data_dir)
    finished_steps = 0
    with progress_bar(name or type(model).__name__, training.steps, progress) as update:

        def update_bar(training_state: Training) -> None:
            nonlocal finished_steps
            finished_steps = training_state.progress.step
            if training_state.is_due(training.log_every):
                update(training_state.progress.step, f"loss {training_state.progress.losses[-1]:.4f}")

        try:
            curve = fit_in_memory(
                model,
                task.config,
                training,
                [update_bar, *callbacks],
                seed=seed,
                device=device,
                data_dir=task.data_dir,
            )
        finally:
            if finished_steps:
                add_training(model, MemoryTraining(trained_task, task.preset, training, seed, finished_steps))
    return pd.DataFrame({"step": curve.steps, "loss": curve.losses})


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
    """Train a run in a results folder, like `iclbench train`.

    To continue after an interruption, repeat the call with the same arguments. A finished run is returned unchanged.
    Unlike in `fit`, warm-up and curriculum are not scaled with `steps`.

    Args:
        task: the task at a preset.
        backbone: name of the backbone, or `package.module:Class`.
        name: name of the run (default: TASK-BACKBONE-PRESET-sSEED).
        seed: seed of weights and episodes.
        results: results folder.
        settings: settings of the backbone, with the keys of the option `-o backbone.KEY`.
        device: auto, cpu, cuda, cuda:1, ...
        progress: whether to show the progress.
        log: trackers that log losses and scores: tensorboard, wandb, mlflow.
        training: training settings, with the keys of the option `-o train.KEY`, such as `steps=300, lr=1e-3`.

    Returns:
        The run; `load` returns its model.

    Raises:
        UsageError: an argument is not valid, or the folder contains another run with this name.
        Interrupted: the user pressed Ctrl-C; a checkpoint has been written.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> with TemporaryDirectory() as folder:
    ...     run = train(task("linear", "smoke"), "cnp", name="tour", results=folder, steps=5)
    ...     run.name, run.is_finished
    ('tour', True)
    """
    trackers, folder = arguments.names("log", log), arguments.folder("results", results)
    check_trackers(trackers)
    folder, name = folder.absolute(), None if name is None else arguments.text("name", name)
    config, device = run_config(task, backbone, seed, settings, training, folder), resolve_device(device)
    config = with_rates_of_started_run(folder, config, name, training)
    context = Context(folder, task.data_dir, device)
    return train_run(config, name, context, partial(progress_bar, visible=progress), trackers)


@guarded
def train_run(
    config: RunConfig,
    name: str | None,
    context: Context,
    make_bar: Callable[[str, int], AbstractContextManager[Update]],
    trackers: Sequence[str] = (),
    processes: Processes = SINGLE_PROCESS,
) -> Run:
    """Start or continue the training of a run until it is finished; a finished run is not changed.

    Both `train` and `iclbench train` use this function.

    Args:
        config: configuration of the run.
        name: name of the run (default: TASK-BACKBONE-PRESET-sSEED).
        context: results folder, data sets and device.
        make_bar: a function that creates a progress bar from a label and the number of steps.
        trackers: names of the trackers that log losses and scores.
        processes: the group of processes that train the run.

    Raises:
        UsageError: the folder contains another run with this name.
        Interrupted: the user pressed Ctrl-C; a checkpoint has been written.
    """
    if not processes.is_first:
        run = Run(context.results / "runs" / processes.broadcast())
        train_with_monitor(run, context, processes=processes)
        return run
    run = create(context.results, config, name, context.data_dir)
    processes.broadcast(run.name)
    if not run.is_finished or not processes.is_single:
        with make_bar(run.name, run.config.train.steps) as update:
            train_with_monitor(run, context, update, trackers, processes=processes)
    return run
