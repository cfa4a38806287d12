"""Training in memory: fresh episodes every step, a curriculum, and callbacks for everything else.

A step is a function of the settings, the weights and its own number: data and loss draw from streams counted by the
step. A training that goes on from the weights, the optimiser and the `Progress` of another therefore equals one that
was never stopped, bit for bit on a CPU with the same number of threads. Runs in folders, with checkpoints and
evaluation, are trained by `iclbench.training.run`, out of the same parts.
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
from iclbench.core.denormals import flushed
from iclbench.core.errors import NonFiniteError, UsageError
from iclbench.core.guard import guarded
from iclbench.core.measure import Measure
from iclbench.core.plugins import named
from iclbench.core.seeds import generator
from iclbench.families.base import Family
from iclbench.training.processes import ALONE, Processes
from iclbench.training.schedule import learning_rate
from iclbench.training.step import TrainingData, autocast, descend, make_optimiser

# Called after every step.
Callback = Callable[["Training"], None]


class TrainingDivergedError(NonFiniteError):
    """The loss, a weight or a score is NaN or infinite.

    Args:
        step: steps that were done.
        what: what is not finite.
    """

    code = "diverged"

    def __init__(self, step: int, what: str) -> None:
        self.step, self.what = step, what
        super().__init__(
            f"training diverged at step {step}: {what}; try a lower learning rate, a longer warm-up, or clip = 1"
        )


@dataclass
class Progress:
    """The progress of a training.

    Attributes:
        step: steps done.
        seconds: time spent on them.
        pending: sum of the losses since the last logged step.
        steps: the logged steps.
        losses: mean loss of the interval that ends at each of them.
        scored: rows of the evaluations so far, see `iclbench.evaluation.monitor`.
        bytes: peak memory, the largest of the processes that took part; None where it is not known of all of them.
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
    """Train a backbone in place, without a folder; returns its learning curve and what it took.

    Args:
        backbone: what is trained; it is left on the device and in eval mode.
        task: draws the episodes; of a family, with so many `points`.
        settings: steps, batch, learning rate, curriculum and so on.
        callbacks: called after every step, in this order.
        points: points of an episode at full size, for a family; a task knows its own.
        seed: of the episodes, and of whatever the loss draws.
        device: where to train.
        data_dir: where the family of a task finds its data sets.

    Raises:
        TrainingDivergedError: the loss or a weight is NaN or infinite; found where the loss is logged, and at the end.
        UsageError: it is not said how many points the episodes of a family have; or the settings ask for evaluations or
            branches.

    >>> from iclbench.config.resolution import resolve_run
    >>> tiny = ["task.dim=2", "backbone.layers=1", "backbone.width=16", "train.steps=20", "train.log_every=10"]
    >>> config = resolve_run("linear", "gpt2", "smoke", seed=0, overrides=tiny)
    >>> def trained():
    ...     model = config.build(config.task.build())
    ...     return model, fit(model, config.task, config.train)
    >>> (first, progress), (second, again) = trained(), trained()
    >>> progress.steps, progress.losses == again.losses
    ([10, 20], True)
    >>> all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    True
    """
    if settings.evaluate_every:
        raise UsageError("fit evaluates nothing by itself: leave evaluate_every at 0 and give a callback")
    if settings.branches:
        raise UsageError("fit keeps no branches: leave branches empty, or train a run in a folder")
    if isinstance(task, TaskConfig):
        data = TrainingData.of(task, task.build(data_dir))
    elif points is None:
        raise UsageError("say how many points the episodes of a family have: fit(backbone, family, ..., points=20)")
    else:
        data = TrainingData(task, points)
    training = Training(backbone, data, settings, seed, device)
    try:
        training.run(callbacks)
        training.check()
    finally:  # however it ends
        backbone.eval()
    return training.progress


class Training:
    """A training while it goes on, as callbacks see it.

    Attributes:
        backbone: what is trained, on the device.
        progress: how far it is.
        optimiser: its optimiser.
        processes: this process among those that train it.
        asked: tells whether somebody wants it to stop.
        end: the step at which it ends: after all, or before, where it is on a branch.

    Args:
        backbone: what is trained.
        data: where the episodes come from.
        settings: steps, batch, learning rate, curriculum and so on.
        seed: of the episodes, and of whatever the loss draws.
        device: where to train.
        processes: this process among those that train it together.

    Raises:
        UsageError: several processes cannot.
    """

    def __init__(
        self,
        backbone: Backbone,
        data: TrainingData,
        settings: TrainSettings,
        seed: int = 0,
        device: str = "cpu",
        processes: Processes = ALONE,
    ) -> None:
        self.backbone = backbone.to(device).train()
        self.data, self.settings, self.seed, self.device = data, settings, seed, device
        self.optimiser = make_optimiser(self.backbone, settings)
        self._loss = torch.compile(self.backbone.loss) if settings.compile else self.backbone.loss
        self.processes = processes
        self.asked: Callable[[], bool] = lambda: False
        self._stopping = False
        processes.check(self.backbone, settings.batch)
        self._infinite = not_finite(self.backbone)  # from the start, like a mask that is added to scores
        self.resume(Progress())

    def resume(self, progress: Progress, end: int | None = None) -> None:
        """Go on from there, on a branch to its `end`; weights and optimiser are already in the state of that step."""
        self.end = self.settings.steps if end is None else end
        progress.pending = progress.pending.to(self.device)
        self.progress = progress
        self._meter = _Meter(progress, self.device)

    def run(self, callbacks: Sequence[Callback] = (), until: int | None = None) -> None:
        """Train to the last step, or `until` so many are done.

        Raises:
            TrainingDivergedError: the loss that is logged is NaN or infinite.
        """
        with self._meter, flushed():
            while self.progress.step < (self.end if until is None else until):
                self.step()
                self.log()
                for callback in callbacks:
                    callback(self)

    def step(self) -> None:
        """Draw episodes, move the weights against the gradient of their loss."""
        step, settings = self.progress.step, self.settings
        batch = self.data.batch(settings, self.seed, step, self.device)
        shared = None if self.processes.alone else self.processes
        share = 1.0
        if shared:
            batch, share = shared.share(self.backbone, batch)
        with autocast(settings, self.device):
            draw = generator(self.seed, "loss", step, device=self.device)
            with named(self.backbone):
                answer = self._loss(batch, step / settings.steps, draw)
        check_loss(self.backbone, answer)
        loss = answer[0]
        for group in self.optimiser.param_groups:
            group["lr"] = group.get("lr_factor", 1.0) * learning_rate(settings, step, self.end)
        if shared is None:
            descend(loss, self.backbone, self.optimiser, settings.clip)
            loss = loss.detach()
        else:
            descend(loss * share, self.backbone, self.optimiser, settings.clip, shared.sum_gradients)
            loss, self._stopping = shared.summed(loss.detach() * share, self.asked())
        self.progress.pending += loss
        self.progress.step = step + 1

    def log(self) -> None:
        """Note the mean loss, every `log_every` steps and after the last."""
        if self.due(self.settings.log_every):
            mean = self.mean_loss()
            self.progress.losses.append(mean)
            self.progress.steps.append(self.progress.step)
            self.progress.pending.zero_()

    def due(self, every: int) -> bool:
        """Whether an action is due that happens every `every` steps and after the last."""
        return self.progress.step % every == 0 or self.last

    @property
    def stopping(self) -> bool:
        """Whether this process was `asked` to stop, of several any of them, when the last step was done."""
        return self.asked() if self.processes.alone else self._stopping

    @property
    def last(self) -> bool:
        """Whether no step is left."""
        return self.progress.step == self.end

    def mean_loss(self) -> float:
        """The mean loss since the last logged step; nothing else waits for the device.

        Raises:
            TrainingDivergedError: it is NaN or infinite.
        """
        logged = self.progress.steps[-1] if self.progress.steps else 0
        mean = float(self.progress.pending) / max(1, self.progress.step - logged)
        if not math.isfinite(mean):
            raise self.diverged(f"the loss is {mean}")
        return mean

    def check(self) -> None:
        """Look at everything, and bring the seconds and bytes of `progress` up to date.

        Raises:
            TrainingDivergedError: the loss or a weight is NaN or infinite, and the weight was not so from the start.
        """
        self.mean_loss()
        if worse := not_finite(self.backbone) - self._infinite:
            raise self.diverged(f"weights are not finite ({min(worse)})")
        self._meter.read()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the training in the block: the backbone is in eval mode, and its time does not count."""
        self.mean_loss()
        with self._meter.stopped():
            self.backbone.eval()
            try:
                yield
            finally:
                self.backbone.train()

    def diverged(self, what: str) -> TrainingDivergedError:
        """The error for a divergence at this step."""
        return TrainingDivergedError(self.progress.step, what)


def not_finite(backbone: Backbone) -> set[str]:
    """The weights and buffers with an element that is NaN or infinite."""
    return {
        name
        for name, tensor in backbone.state_dict().items()
        if (tensor.is_floating_point() or tensor.is_complex()) and not torch.isfinite(tensor).all()
    }


class _Meter:
    """Seconds and bytes of a training, added to those that its progress begins with.

    Args:
        progress: what they are written to.
        device: where the training is.
    """

    def __init__(self, progress: Progress, device: str) -> None:
        self._progress, self._memory = progress, Measure(device)

    def __enter__(self) -> None:
        self._memory.__enter__()
        self._started = time.perf_counter() - self._progress.seconds

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.read()
        self._memory.__exit__(*raised)

    def read(self) -> None:
        """Bring the progress up to date."""
        self._progress.seconds = time.perf_counter() - self._started
        self._read_peak()

    def _read_peak(self) -> None:
        before, current = self._progress.bytes, self._memory.peak
        self._progress.bytes = None if before is None or current is None else max(before, current)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Neither the time nor the memory of the block counts."""
        self._read_peak()
        stopped = time.perf_counter()
        try:
            yield
        finally:
            self._memory.restart_peak()
            self._started += time.perf_counter() - stopped
