"""Training in memory, with new episodes at each step, a curriculum, and callbacks.

The random streams of data and loss are indexed by the number of the step, so a step depends only on its number, the
settings, the weights and the optimiser state. A training run that continues from the weights, the optimiser state and
the `Progress` of an interrupted run therefore equals an uninterrupted run, bit for bit on a CPU with the same number of
threads. `iclbench.training.run` trains runs in folders, with checkpoints and evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.core.answers import check_loss
from iclbench.core.denormals import flush_denormals
from iclbench.core.errors import NonFiniteError, UsageError
from iclbench.core.guard import guarded
from iclbench.core.measure import Measure
from iclbench.core.plugins import plugin_errors
from iclbench.core.seeds import generator
from iclbench.families.base import Family
from iclbench.training.processes import SINGLE_PROCESS, Processes
from iclbench.training.schedule import learning_rate
from iclbench.training.step import TrainingData, autocast, descend, make_optimiser

# Called after every step.
Callback = Callable[["Training"], None]


class TrainingDivergedError(NonFiniteError):
    """The loss, a weight or a score is NaN or infinite.

    Args:
        step: number of finished steps.
        problem: which value is not finite, as a clause.
    """

    code = "diverged"

    def __init__(self, step: int, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(
            f"training diverged at step {step}: {problem}; try a lower learning rate, a longer warm-up, or clip = 1"
        )


@dataclass
class Progress:
    """The progress of a training run.

    Attributes:
        step: number of finished steps.
        seconds: time spent on these steps.
        pending: sum of the losses since the last logged step.
        steps: the logged steps.
        losses: for each logged step, the mean loss since the previous logged step.
        scored: rows of the evaluations so far (see `iclbench.evaluation.monitor`).
        bytes: peak memory so far, including earlier processes that trained this run; None if it is unknown for any of
            them.
    """

    step: int = 0
    seconds: float = 0.0
    pending: Tensor = field(default_factory=lambda: torch.zeros(()))
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scored: list[dict[str, Any]] = field(default_factory=list)
    bytes: int | None = 0


@guarded
def fit(
    backbone: Backbone,
    task: TaskConfig | Family,
    settings: TrainSettings,
    callbacks: Sequence[Callback] = (),
    *,
    points: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    data_dir: Path | None = None,
) -> Progress:
    """Train a backbone in place, without writing files, and return its learning curve and costs.

    Args:
        backbone: the backbone. Afterwards, it is on the device and in eval mode.
        task: a task or a family, which draws the episodes.
        settings: steps, batch, learning rate, curriculum and other settings.
        callbacks: called after each step, in this order.
        points: number of points in an episode at the end of the curriculum; required for a family.
        seed: seed of the episodes and of random numbers in the loss.
        device: the device of the training.
        data_dir: folder of the data sets of a task's family.

    Raises:
        TrainingDivergedError: the loss or a weight is NaN or infinite. Losses are checked when they are logged, weights
            at the end.
        UsageError: `points` is missing for a family, or the settings have evaluations or branches.

    >>> from iclbench.config.resolution import resolve_run
    >>> tiny = ["task.dim=2", "backbone.layers=1", "backbone.width=16", "train.steps=20", "train.log_every=10"]
    >>> config = resolve_run("linear", "gpt2", "smoke", seed=0, overrides=tiny)
    >>> def train():
    ...     model = config.build(config.task.build())
    ...     return model, fit(model, config.task, config.train)
    >>> (first, first_progress), (second, second_progress) = train(), train()
    >>> first_progress.steps, first_progress.losses == second_progress.losses
    ([10, 20], True)
    >>> all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    True
    """
    if settings.evaluate_every:
        raise UsageError("fit does not evaluate: set evaluate_every to 0 and pass a callback", code="bad-value")
    if settings.branches:
        raise UsageError("fit does not train branches: remove branches, or train a run in a folder", code="bad-value")
    if isinstance(task, TaskConfig):
        data = TrainingData.of(task, task.build(data_dir))
    elif points is None:
        raise UsageError(
            "a family needs the number of points of its episodes: fit(backbone, family, ..., points=20)",
            code="missing-value",
        )
    else:
        data = TrainingData(task, points)
    training = Training(backbone, data, settings, seed, device)
    try:
        training.run(callbacks)
        training.check()
    finally:
        backbone.eval()
    return training.progress


class Training:
    """A training run in progress. Callbacks receive this object as their argument.

    Attributes:
        backbone: the backbone, on the device.
        progress: the progress.
        optimiser: the optimiser.
        processes: the rank of this process and the number of processes that train together.
        stop_requested: a function that returns whether the training should stop.
        end: the last step of the training or, while a branch is trained, of the branch.

    Args:
        backbone: the backbone.
        data: the source of the episodes.
        settings: steps, batch, learning rate, curriculum and other settings.
        seed: seed of the episodes and of random numbers in the loss.
        device: the device of the training.
        processes: the rank of this process and the number of processes that train together.

    Raises:
        UsageError: the backbone or the batch does not support several processes.
    """

    def __init__(
        self,
        backbone: Backbone,
        data: TrainingData,
        settings: TrainSettings,
        seed: int = 0,
        device: str = "cpu",
        processes: Processes = SINGLE_PROCESS,
    ) -> None:
        self.backbone = backbone.to(device).train()
        self.data, self.settings, self.seed, self.device = data, settings, seed, device
        self.optimiser = make_optimiser(self.backbone, settings)
        self._loss = torch.compile(self.backbone.loss) if settings.compile else self.backbone.loss
        self.processes = processes
        self.stop_requested: Callable[[], bool] = lambda: False
        self._should_stop = False
        processes.check(self.backbone, settings.batch)
        self._initially_nonfinite = nonfinite_names(self.backbone)  # such as a buffer with a mask of -inf
        self.resume(Progress())

    def resume(self, progress: Progress, end: int | None = None) -> None:
        """Continue from this progress, up to step `end` (default: the last step of the settings). Weights and optimiser
        must already be restored."""
        self.end = self.settings.steps if end is None else end
        progress.pending = progress.pending.to(self.device)
        self.progress = progress
        self._meter = _Meter(progress, self.device)

    def run(self, callbacks: Sequence[Callback] = (), until: int | None = None) -> None:
        """Train to the last step, or until this number of steps is finished.

        Raises:
            TrainingDivergedError: a logged loss is NaN or infinite.
        """
        with self._meter, flush_denormals():
            while self.progress.step < (self.end if until is None else until):
                self.step()
                self.log()
                for callback in callbacks:
                    callback(self)

    def step(self) -> None:
        """Draw episodes, and update the weights with the gradient of the loss on these episodes."""
        step, settings = self.progress.step, self.settings
        batch = self.data.batch(settings, self.seed, step, self.device)
        processes = None if self.processes.is_single else self.processes
        share = 1.0
        if processes:
            batch, share = processes.share(self.backbone, batch)
        with autocast(settings, self.device):
            loss_generator = generator(self.seed, "loss", step, device=self.device)
            with plugin_errors(self.backbone):
                answer = self._loss(batch, step / settings.steps, loss_generator)
        check_loss(self.backbone, answer)
        loss = answer[0]
        for group in self.optimiser.param_groups:
            group["lr"] = group.get("lr_factor", 1.0) * learning_rate(settings, step, self.end)
        if processes is None:
            descend(loss, self.backbone, self.optimiser, settings.clip)
            loss = loss.detach()
        else:
            descend(loss * share, self.backbone, self.optimiser, settings.clip, processes.sum_gradients)
            loss, self._should_stop = processes.sum_losses(loss.detach() * share, self.stop_requested())
        self.progress.pending += loss
        self.progress.step = step + 1

    def log(self) -> None:
        """Log the mean loss if the step is a multiple of `log_every` or the last one."""
        if self.is_due(self.settings.log_every):
            mean = self.mean_loss()
            self.progress.losses.append(mean)
            self.progress.steps.append(self.progress.step)
            self.progress.pending.zero_()

    def is_due(self, every: int) -> bool:
        """Return whether the number of finished steps is a multiple of `every`, or the last step is finished."""
        return self.progress.step % every == 0 or self.is_last

    @property
    def should_stop(self) -> bool:
        """Whether a stop was requested in any of the processes. With several processes, a request is known only after
        the next step."""
        return self.stop_requested() if self.processes.is_single else self._should_stop

    @property
    def is_last(self) -> bool:
        """Whether the last step is finished."""
        return self.progress.step == self.end

    def mean_loss(self) -> float:
        """Return the mean loss since the last logged step. This call synchronises with the device.

        Raises:
            TrainingDivergedError: the mean loss is NaN or infinite.
        """
        last_logged = self.progress.steps[-1] if self.progress.steps else 0
        mean = float(self.progress.pending) / max(1, self.progress.step - last_logged)
        if not math.isfinite(mean):
            raise self.diverged(f"the loss is {mean}")
        return mean

    def check(self) -> None:
        """Check that loss and weights are finite, and update the seconds and bytes of `progress`.

        Raises:
            TrainingDivergedError: the loss, or a weight that was finite at the start, is NaN or infinite.
        """
        self.mean_loss()
        if diverged := nonfinite_names(self.backbone) - self._initially_nonfinite:
            raise self.diverged(f"weights are not finite ({min(diverged)})")
        self._meter.read()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block, switch the backbone to eval mode, and do not count the time as training time."""
        self.mean_loss()
        with self._meter.paused():
            self.backbone.eval()
            try:
                yield
            finally:
                self.backbone.train()

    def diverged(self, problem: str) -> TrainingDivergedError:
        """Return the error for a divergence at the current step."""
        return TrainingDivergedError(self.progress.step, problem)


def nonfinite_names(backbone: Backbone) -> set[str]:
    """Return the names of weights and buffers that have a NaN or infinite element."""
    return {
        name
        for name, tensor in backbone.state_dict().items()
        if (tensor.is_floating_point() or tensor.is_complex()) and not torch.isfinite(tensor).all()
    }


class _Meter:
    """Measures the seconds and the peak memory of a training run, and writes them to the progress of the run.

    Args:
        progress: the progress to which seconds and bytes are written.
        device: the device of the training.
    """

    def __init__(self, progress: Progress, device: str) -> None:
        self._progress, self._memory = progress, Measure(device)

    def __enter__(self) -> None:
        self._memory.__enter__()
        # The start time, shifted so that earlier seconds of training count and pauses do not.
        self._start = time.perf_counter() - self._progress.seconds

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.read()
        self._memory.__exit__(*raised)

    def read(self) -> None:
        """Update the seconds and the bytes of the progress."""
        self._progress.seconds = time.perf_counter() - self._start
        self._read_peak()

    def _read_peak(self) -> None:
        before, current = self._progress.bytes, self._memory.peak
        self._progress.bytes = None if before is None or current is None else max(before, current)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block, do not measure time and memory."""
        self._read_peak()
        pause_start = time.perf_counter()
        try:
            yield
        finally:
            self._memory.restart_peak()
            self._start += time.perf_counter() - pause_start
