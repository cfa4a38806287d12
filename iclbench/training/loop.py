"""The training loop: fresh episodes every step, a curriculum, exact resume.

A step is a function of the configuration, the weights and its own number: data and loss draw from streams counted by
the step. Training 2n steps therefore equals training n, being killed, and continuing, bit for bit on a CPU with the
same number of threads.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from iclbench import __version__, devices, tables
from iclbench.backbones.base import Backbone
from iclbench.cards import TrainSettings
from iclbench.episodes import Episodes
from iclbench.errors import IclbenchError, Interrupted, NonFiniteError
from iclbench.evaluation.measure import Measure
from iclbench.families.base import Family
from iclbench.files import save_tensors
from iclbench.runs import Run, writing
from iclbench.seeds import generator
from iclbench.training import checkpoint
from iclbench.training.monitor import Monitor, accuracies
from iclbench.training.schedule import learning_rate

Report = Callable[[int, float], None]
Watch = Callable[[dict[str, float]], None]


class DivergedError(IclbenchError):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class Device:
    """Where and how training runs."""

    name: str = "cpu"
    threads: int = 1


def train(
    run: Run,
    device: Device | None = None,
    report: Report | None = None,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    wait: bool = False,
) -> None:
    """Train a run to its last step, continuing from its newest checkpoint; does nothing when it is finished.

    Args:
        run: a run folder with its configuration.
        device: where to train.
        report: called with the number of steps done and the mean loss since the last call.
        data_dir: where families find their data sets.
        watch: called with the accuracy by test whenever the model was evaluated.
        wait: for another process that trains this run, and continue where it stopped.

    Raises:
        DivergedError: the loss is NaN or infinite; the last good checkpoint stays.
        Interrupted: SIGINT or SIGTERM came; a checkpoint was written.
        IclbenchError: another process trains this run, and nobody is to wait for it.
    """
    device = device or Device()
    with run.lock(wait):
        if not run.finished:
            _train(run, device, report or (lambda step, loss: None), data_dir, watch or (lambda found: None))


def _train(run: Run, device: Device, report: Report, data_dir: Path | None, watch: Watch) -> None:
    config, settings = run.config, run.config.train
    family, longest = config.task.build(data_dir), config.task.drawn(config.task.points)
    backbone = config.build(family).to(device.name).train()
    run.tell(backbone, device.name)
    optimiser = make_optimiser(backbone, settings)
    progress = checkpoint.restore(run, backbone, optimiser)
    loss_of = torch.compile(backbone.loss) if settings.compile else backbone.loss
    progress.pending = progress.pending.to(device.name)
    monitor = Monitor(run, family, device.name, data_dir)
    memory = Measure(device.name)
    started, before = time.perf_counter(), progress.seconds

    def mean_loss() -> float:
        """The mean loss since the last logged step; the only place where the device is waited for."""
        mean = float(progress.pending) / max(1, progress.step - (progress.steps[-1] if progress.steps else 0))
        if not math.isfinite(mean):
            raise diverged(f"the loss is {mean}")
        return mean

    def diverged(what: str) -> DivergedError:
        return DivergedError(
            f"run '{run.name}': {what} at step {progress.step}; the last good checkpoint is kept. "
            "Try another --name with a lower -o train.lr, a longer -o train.warmup, or -o train.clip=1"
        )

    def log() -> None:
        progress.losses.append(mean_loss())
        progress.steps.append(progress.step)
        progress.pending.zero_()
        report(progress.step, progress.losses[-1])

    def note_peak() -> None:
        known = progress.bytes is not None and memory.peak is not None
        progress.bytes = max(progress.bytes or 0, memory.peak or 0) if known else None

    def evaluate() -> None:
        nonlocal started
        mean_loss()
        note_peak()
        paused = time.perf_counter()
        try:
            rows = monitor.score(backbone, progress.step)
        except NonFiniteError as error:
            raise diverged(str(error)) from error
        progress.scored += rows
        watch(accuracies(rows))
        memory.restart_peak()
        started += time.perf_counter() - paused  # what training costs is measured without it

    def keep() -> None:
        mean_loss()
        progress.seconds = before + time.perf_counter() - started
        note_peak()
        with writing(run.path):
            checkpoint.save(run, backbone, optimiser, progress)

    with memory, _signals() as stop:
        for step in range(progress.step, settings.steps):
            batch = training_batch(family, longest, settings, config.seed, step, device.name)
            with autocast(settings, device.name):
                loss, _ = loss_of(
                    batch, step / settings.steps, generator(config.seed, "loss", step, device=device.name)
                )
            for group in optimiser.param_groups:
                group["lr"] = group.get("lr_factor", 1.0) * learning_rate(settings, step)
            descend(loss, backbone, optimiser, settings.clip)
            progress.pending += loss.detach()
            progress.step = step + 1
            last = progress.step == settings.steps
            if monitor.due(progress.step):
                evaluate()
            if last or progress.step % settings.log_every == 0:
                log()
            if last or stop or progress.step % settings.checkpoint_every == 0:
                keep()
            if stop and not last:
                raise Interrupted(f"interrupted; the same command continues run '{run.name}' from step {progress.step}")
    with writing(run.path):
        _finish(run, device, backbone, family, progress)


def training_batch(
    family: Family, points: int, settings: TrainSettings, seed: int, step: int, device: str = "cpu"
) -> Episodes:
    """The episodes of one step: a function of seed and step alone, at the size the curriculum has reached, with
    `points` points at most."""
    curriculum = settings.curriculum
    dims = curriculum.dims.at(step, family.x_dim) if curriculum.dims else None
    size = curriculum.points.at(step, points) if curriculum.points else points
    return family.sample(settings.batch, size, generator(seed, "data", step, device=device), active_dims=dims)


def make_optimiser(backbone: Backbone, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam or AdamW over the backbone's parameter groups, fused where the device has it."""
    cls = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    groups = backbone.parameter_groups()
    return cls(groups, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)


def descend(loss: torch.Tensor, backbone: Backbone, optimiser: torch.optim.Optimizer, clip: float) -> None:
    """Move the backbone against the gradients of the loss, together of norm `clip` at most (0: of any)."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(backbone.parameters(), clip)
    optimiser.step()


def _finish(run: Run, device: Device, backbone: Backbone, family: Family, progress: checkpoint.Progress) -> None:
    """Write the training curves and the costs, and last the weights, whose presence says that the run is finished."""
    config = run.config
    normaliser = family.normaliser if config.task.head == "point" else 1.0
    common = {"run": run.name, "task": config.task.name, "contestant": config.backbone.name, "preset": config.preset}
    shared = common | {
        "family": config.task.family, "kind": "backbone", "seed": config.seed, "variant": config.variant,
        "shift": "none", "status": "ok", "card": config.task.card, "version": __version__,
    }  # fmt: skip
    curve = [
        shared
        | {"evaluator": "train", "axis": "train_step", "axis_value": float(step), "metric": "loss",
           "value": loss / normaliser, "normaliser": normaliser}
        for step, loss in zip(progress.steps, progress.losses, strict=True)
    ]  # fmt: skip
    scored = [shared | {"normaliser": 1.0} | row for row in progress.scored]
    tables.write("values", curve + scored, run.path / "values.parquet", {"config": run.hash})
    measured = common | {"device": devices.label(device.name), "threads": device.threads, "version": __version__}
    costs = [
        measured | {"phase": "model", "metric": "parameters", "value": float(backbone.parameter_count)},
        measured | {"phase": "train", "metric": "seconds", "value": progress.seconds},
        measured | {"phase": "train_step", "metric": "seconds", "value": progress.seconds / config.train.steps},
    ]
    if progress.bytes:
        costs.append(measured | {"phase": "train", "metric": "bytes", "value": float(progress.bytes)})
    tables.write("costs", costs, run.path / "costs.parquet", {"config": run.hash})
    save_tensors(run.weights, backbone.state_dict(), {"config": run.hash})


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them, so that the loop can stop between two steps."""
    caught: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    try:
        previous = {s: signal.signal(s, remember) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs the thread decides when to stop
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def autocast(settings: TrainSettings, device: str) -> contextlib.AbstractContextManager[object]:
    """The precision that the forward pass of a training step computes in."""
    if settings.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)
