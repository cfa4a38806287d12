"""Training a run in its folder: checkpoints, exact resume, signals, and what it leaves behind."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

from iclbench.config.cards import decay_begins
from iclbench.config.resolution import RunConfig
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted
from iclbench.core.guard import guarded
from iclbench.core.memory import IN_TRAINING, advised
from iclbench.families.base import Family
from iclbench.store.runs import DivergedError, Hold, Run, writing
from iclbench.training import checkpoint, record
from iclbench.training.branches import restored_after, train_branch
from iclbench.training.fit import Callback, Progress, Training, TrainingDivergedError
from iclbench.training.processes import ALONE, Processes
from iclbench.training.step import TrainingData

log = logging.getLogger("iclbench")

# Called with the number of steps done and the mean loss since the last call.
Report = Callable[[int, float], None]
ReportOfBranch = Callable[[int, int, float], None]
# Makes the callback that evaluates the model of a run while it trains, see `iclbench.evaluation.monitor`.
MonitorOf = Callable[[RunConfig, Family], Callback]

# So many signals end a training at once, without a checkpoint: a step may take minutes.
_HURRY = 3


@guarded
def train(
    run: Run,
    context: Context | None = None,
    report: Report | None = None,
    monitor: MonitorOf | None = None,
    wait: bool = False,
    report_branch: ReportOfBranch | None = None,
    processes: Processes = ALONE,
) -> None:
    """Train a run to its last step, continuing from its newest checkpoint; does nothing when it is finished.

    Args:
        run: a run folder with its configuration.
        context: where to train, and where families find their data sets.
        report: called with the number of steps done and the mean loss since the last call.
        monitor: `iclbench.evaluation.monitor.Monitor`; needed where the configuration has `train.evaluate_every`.
        wait: for another process that trains this run, and continue where it stopped.
        report_branch: the same on branches, with the number of steps at which the branch ends before it.
        processes: this process among those that train the run together; the first one writes.

    Raises:
        DivergedError: the loss or a weight is NaN or infinite, now or when this configuration was trained before; the
            last good checkpoint stays.
        Interrupted: SIGINT or SIGTERM came; a checkpoint was written, or, in the last step, the finished run.
        OutOfMemoryError: there is not enough of it.
        IclbenchError: another process trains this run and `wait` is False; or there is no room on the disk.
    """
    if run.config.train.evaluate_every and monitor is None:
        raise ValueError(f"run '{run.name}' is to be evaluated while it trains: train(run, monitor=Monitor)")
    context = context or Context()
    if not processes.leads:
        if processes.agree() == "train":
            _train(run, None, context, None, None, None, processes)
        return
    with run.lock(wait) as hold, advised(IN_TRAINING):
        if run.finished:
            processes.agree("finished")
            return
        if run.diverged:
            raise run.diverged
        hold.store_config()
        run.forget_divergence()
        (run.path / run.UNPACKED).unlink(missing_ok=True)
        processes.agree("train")
        _train(run, hold, context, report, monitor, report_branch, processes)


def _train(
    run: Run,
    hold: Hold | None,
    context: Context,
    report: Report | None,
    monitor: MonitorOf | None,
    report_branch: ReportOfBranch | None,
    processes: Processes,
) -> None:
    """The work of one process; only the leading one has a `hold`, and writes."""
    config = run.config
    family = config.task.build(context.data_dir)
    family.check_data()
    backbone = config.build(family)
    if hold is not None:
        run.log_notes(backbone, context.device)
    data = TrainingData.of(config.task, family)
    training = Training(backbone, data, config.train, config.seed, context.device, processes)
    training.resume(_restored(run, training))
    evaluating = [monitor(config, family)] if monitor is not None and config.train.evaluate_every else []
    reporting = [_reporting(report)] if report is not None else []
    try:
        with _signals(run) as stop:
            training.asked = lambda: bool(stop)
            callbacks = [*evaluating, *reporting, _keeping(run, hold, stop)]
            for steps in config.train.branch_steps:
                training.run(callbacks, until=decay_begins(steps))
                if training.progress.step == decay_begins(steps) and not processes.same(partial(run.has_branch, steps)):
                    reporting_branch = [_reporting(partial(report_branch, steps))] if report_branch is not None else []
                    _branch(run, hold, stop, training, steps, reporting_branch)
                if hold is not None:
                    checkpoint.forget(run, steps)
            training.run(callbacks)
    except TrainingDivergedError as diverged:
        error = DivergedError(run, diverged.step, diverged.what)
        if hold is None:
            raise error from diverged
        with _written(run, hold):
            record.give_up(run, family, training.progress, error)
        raise error from diverged
    if hold is None:
        return
    with _written(run, hold):
        record.finish(run, context.device, context.threads, backbone, family, training.progress)
    if stop:  # it came in the last step: whoever asked for this run was to go on with others
        raise Interrupted(f"interrupted; run '{run.name}' is finished")


def _restored(run: Run, training: Training, branch: int | None = None) -> Progress:
    """The newest checkpoint, in the weights and the optimiser of all processes."""
    processes = training.processes

    def restore() -> tuple[Progress, Any, Any]:
        progress = checkpoint.restore(run, training.backbone, training.optimiser, branch)
        return progress, training.backbone.state_dict(), training.optimiser.state_dict()

    if processes.alone:
        return checkpoint.restore(run, training.backbone, training.optimiser, branch)
    progress, weights, moments = processes.same(restore)
    if not processes.leads:
        training.backbone.load_state_dict(weights)
        training.optimiser.load_state_dict(moments)
    restored: Progress = progress
    return restored


def _reporting(report: Report) -> Callback:
    """Pass on what is logged."""

    def report_step(training: Training) -> None:
        if training.due(training.settings.log_every):
            report(training.progress.step, training.progress.losses[-1])

    return report_step


def _branch(
    run: Run, hold: Hold | None, stop: _Stop, training: Training, steps: int, callbacks: Sequence[Callback] = ()
) -> None:
    """Train the branch that ends after so many steps, keep its weights, and leave the training as it is.

    Its seconds are told to the training, whose checkpoint is written with them before the weights say that it is done:
    whenever it is killed, they are counted once.
    """
    log.info("run '%s': branch of %d steps, from step %d", run.name, steps, training.progress.step)
    training.check()
    _save(run, hold, stop, training)
    with restored_after(training) as progress:
        restored = _restored(run, training, steps)
        keeping = _keeping(run, hold, stop, steps)
        weights = train_branch(training, restored if restored.step else progress, steps, [*callbacks, keeping])
        at_end = training.progress
    training.progress.seconds, training.progress.bytes = at_end.seconds, at_end.bytes
    _save(run, hold, stop, training)
    if hold is not None:
        with stop.held(), _written(run, hold):
            record.keep_branch(run, steps, weights)


def _save(run: Run, hold: Hold | None, stop: _Stop, training: Training, branch: int | None = None) -> None:
    """Write a checkpoint, if this process writes."""
    if hold is None:
        return
    with stop.held(), _written(run, hold):
        checkpoint.save(run, training.backbone, training.optimiser, training.progress, branch)


def _keeping(run: Run, hold: Hold | None, stop: _Stop, branch: int | None = None) -> Callback:
    """Write checkpoints of what is finite, the last one before training stops for a signal."""

    def keep(training: Training) -> None:
        if training.stopping or training.due(training.settings.checkpoint_every):
            training.check()
            _save(run, hold, stop, training, branch)
        if training.stopping and not training.last:
            at = f"step {training.progress.step}" + (f" of its branch of {branch} steps" if branch else "")
            raise Interrupted(f"interrupted; the same command continues run '{run.name}' from {at}")

    return keep


@contextlib.contextmanager
def _written(run: Run, hold: Hold) -> Iterator[None]:
    """Write into the folder of the run in the block; the folder is recreated if it is gone."""
    with writing(run.path):
        hold.restore()
        yield


class _Stop:
    """Whether SIGINT or SIGTERM has come: true from the first on.

    Args:
        run: the run that is trained.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._signals_seen, self._held = run, 0, False

    def __bool__(self) -> bool:
        return self._signals_seen > 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal has come. Raises `Interrupted` at the third, which is the user's who waits for a long step."""
        self._signals_seen += 1
        if self._signals_seen >= _HURRY and not self._held:
            at = self._run.checkpoint_step
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
