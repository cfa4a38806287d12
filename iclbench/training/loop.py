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

from iclbench.backbones.base import Backbone
from iclbench.config.runs import DivergedError, Hold, Run, writing
from iclbench.core.errors import Interrupted, NonFiniteError
from iclbench.core.measure import Measure
from iclbench.core.memory import IN_TRAINING, advised
from iclbench.core.seeds import generator
from iclbench.training import checkpoint, record
from iclbench.training.monitor import Monitor, accuracies
from iclbench.training.schedule import learning_rate
from iclbench.training.step import autocast, descend, make_optimiser, training_batch

Report = Callable[[int, float], None]
Watch = Callable[[dict[str, float]], None]


# So many signals end a training at once, without a checkpoint: a step may take minutes.
_HURRY = 3


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
        DivergedError: the loss or a weight is NaN or infinite, now or when this configuration was trained before; the
            last good checkpoint stays.
        Interrupted: SIGINT or SIGTERM came; a checkpoint was written.
        OutOfMemoryError: there is not enough of it.
        IclbenchError: another process trains this run, and nobody is to wait for it; or there is no room on the disk.
    """
    device = device or Device()
    with run.lock(wait) as hold, advised(IN_TRAINING):
        if run.finished:
            return
        if run.diverged:
            raise run.diverged
        hold.remember()
        run.forget_divergence()
        _train(run, hold, device, report or (lambda step, loss: None), data_dir, watch or (lambda found: None))


def _train(run: Run, hold: Hold, device: Device, report: Report, data_dir: Path | None, watch: Watch) -> None:
    config, settings = run.config, run.config.train
    family = config.task.build(data_dir)
    backbone = config.build(family).to(device.name).train()
    run.tell(backbone, device.name)
    optimiser = make_optimiser(backbone, settings)
    infinite = not_finite(backbone)  # from the start, like a mask that is added to scores
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
        return DivergedError(run, progress.step, what)

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
        if worse := not_finite(backbone) - infinite:
            raise diverged(f"weights are not finite ({min(worse)})")
        progress.seconds = before + time.perf_counter() - started
        note_peak()
        with stop.held(), writing(run.path):
            hold.renew()
            checkpoint.save(run, backbone, optimiser, progress)

    def loop() -> None:
        for step in range(progress.step, settings.steps):
            batch = training_batch(family, config.task, settings, config.seed, step, device.name)
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

    try:
        with memory, _signals(run) as stop:
            loop()
    except DivergedError as error:
        with writing(run.path):
            hold.renew()
            record.give_up(run, family, progress, error)
        raise
    with writing(run.path):
        hold.renew()
        record.finish(run, device.name, device.threads, backbone, family, progress)


def not_finite(backbone: Backbone) -> set[str]:
    """The weights and buffers with an element that is NaN or infinite."""
    return {
        name
        for name, tensor in backbone.state_dict().items()
        if (tensor.is_floating_point() or tensor.is_complex()) and not torch.isfinite(tensor).all()
    }


class _Stop:
    """Whether SIGINT or SIGTERM has come: true from the first on.

    Args:
        run: the run that is trained.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._asked, self._held = run, 0, False

    def __bool__(self) -> bool:
        return self._asked > 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal has come. Raises `Interrupted` at the third, which is the user's who waits for a long step."""
        self._asked += 1
        if self._asked >= _HURRY and not self._held:
            at = self._run.reached
            raise Interrupted(f"interrupted at once; the same command continues run '{self._run.name}' from step {at}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A checkpoint is being written, which is short and nothing to be interrupted."""
        self._held = True
        try:
            yield
        finally:
            self._held = False


@contextlib.contextmanager
def _signals(run: Run) -> Iterator[_Stop]:
    """Collect SIGINT and SIGTERM instead of dying of them, so that the loop can stop between two steps."""
    stop = _Stop(run)
    try:
        previous = {s: signal.signal(s, stop.ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs the thread decides when to stop
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
