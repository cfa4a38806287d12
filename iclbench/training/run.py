"""Training of a run in its folder, with checkpoints from which it continues exactly, and handling of signals."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

from iclbench.config.cards import decay_start
from iclbench.config.resolution import RunConfig
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted
from iclbench.core.guard import guarded
from iclbench.core.memory import TRAINING_REMEDY, memory_advice
from iclbench.families.base import Family
from iclbench.store.runs import DivergedError, Run, RunLock, write_errors
from iclbench.training import checkpoint, record
from iclbench.training.branches import restore_after, train_branch
from iclbench.training.fit import Callback, Progress, Training, TrainingDivergedError
from iclbench.training.processes import SINGLE_PROCESS, Processes
from iclbench.training.step import TrainingData

log = logging.getLogger("iclbench")

# Called with the number of finished steps and the mean loss since the last call.
StepReport = Callable[[int, float], None]
# Called with the number of steps of the branch, followed by the arguments of `StepReport`.
BranchReport = Callable[[int, int, float], None]
# Creates the callback that evaluates a model during training (see `iclbench.evaluation.monitor`).
MonitorFactory = Callable[[RunConfig, Family], Callback]

# At the first signal, training stops after the current step, but a step may take minutes. At this number of signals, it
# stops at once, without writing a checkpoint.
_SIGNALS_TO_END = 3


@guarded
def train(
    run: Run,
    context: Context | None = None,
    report: StepReport | None = None,
    monitor: MonitorFactory | None = None,
    wait: bool = False,
    report_branch: BranchReport | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> None:
    """Train a run from its newest checkpoint to its last step. If the run is finished, do nothing.

    Args:
        run: a run whose folder has a configuration.
        context: the device, the number of threads and the folder of the data sets.
        report: called with the number of finished steps and the mean loss since the last call.
        monitor: `iclbench.evaluation.monitor.Monitor`; required if the configuration has `train.evaluate_every`.
        wait: whether to wait if another process is training this run, and to continue after it has ended.
        report_branch: like `report`, for branches. The number of steps of the branch is its first argument.
        processes: the rank of this process and the number of processes that train the run. Only the first one writes
            files.

    Raises:
        DivergedError: the loss or a weight is NaN or infinite, or training with this configuration diverged earlier.
            The last valid checkpoint is not removed.
        Interrupted: SIGINT or SIGTERM was received. A checkpoint has been written, or the finished run if the signal
            arrived in the last step. At the third signal, nothing is written.
        OutOfMemoryError: memory is not sufficient.
        IclbenchError: another process is training this run and `wait` is False, or the disk is full.
    """
    if run.config.train.evaluate_every and monitor is None:
        raise ValueError(f"run '{run.name}' has train.evaluate_every: call train(run, monitor=Monitor)")
    context = context or Context()
    if not processes.is_first:
        if processes.broadcast() == "train":
            _train(run, None, context, None, None, None, processes)
        return
    with run.lock(wait) as run_lock, memory_advice(TRAINING_REMEDY):
        if run.is_finished:
            processes.broadcast("finished")
            return
        if (error := run.recorded_divergence) is not None:
            raise error
        run_lock.store_config()
        run.forget_divergence()
        (run.path / run.UNPACKED).unlink(missing_ok=True)
        processes.broadcast("train")
        _train(run, run_lock, context, report, monitor, report_branch, processes)


def _train(
    run: Run,
    run_lock: RunLock | None,
    context: Context,
    report: StepReport | None,
    monitor: MonitorFactory | None,
    report_branch: BranchReport | None,
    processes: Processes,
) -> None:
    """Train a run in this process. Only the first process has a `run_lock` and writes files."""
    config = run.config
    family = config.task.build(context.data_dir)
    family.check_data()
    backbone = config.build(family)
    if run_lock is not None:
        run.log_notes(backbone, context.device)
    data = TrainingData.of(config.task, family)
    training = Training(backbone, data, config.train, config.seed, context.device, processes)
    training.resume(_restore(run, training))
    evaluation_callbacks = [monitor(config, family)] if monitor is not None and config.train.evaluate_every else []
    report_callbacks = [_report_callback(report)] if report is not None else []
    try:
        with _count_signals(run) as stop:
            training.stop_requested = lambda: bool(stop)
            callbacks = [*evaluation_callbacks, *report_callbacks, _checkpoint_callback(run, run_lock, stop)]
            for steps in config.train.branch_steps:
                training.run(callbacks, until=decay_start(steps))
                if training.progress.step == decay_start(steps) and not processes.from_first(
                    partial(run.has_branch, steps)
                ):
                    branch_callbacks = []
                    if report_branch is not None:
                        branch_callbacks.append(_report_callback(partial(report_branch, steps)))
                    _train_and_write_branch(run, run_lock, stop, training, steps, branch_callbacks)
                if run_lock is not None:
                    checkpoint.remove_all(run, steps)
            training.run(callbacks)
    except TrainingDivergedError as diverged:
        error = DivergedError(run, diverged.step, diverged.problem)
        if run_lock is None:
            raise error from diverged
        with _writing_to_run(run, run_lock):
            record.write_divergence(run, family, training.progress, error)
        raise error from diverged
    if run_lock is None:
        return
    with _writing_to_run(run, run_lock):
        record.finish(run, context.device, context.threads, backbone, family, training.progress)
    if stop:  # the signal arrived in the last step; raise it so that the caller does not continue with other runs
        raise Interrupted(f"interrupted; run '{run.name}' is finished")


def _restore(run: Run, training: Training, branch: int | None = None) -> Progress:
    """Restore the newest checkpoint of a run or a branch in all processes, and return its progress."""
    processes = training.processes

    def restore() -> tuple[Progress, Any, Any]:
        progress = checkpoint.restore(run, training.backbone, training.optimiser, branch)
        return progress, training.backbone.state_dict(), training.optimiser.state_dict()

    if processes.is_single:
        return checkpoint.restore(run, training.backbone, training.optimiser, branch)
    progress, weights, optimiser_state = processes.from_first(restore)
    if not processes.is_first:
        training.backbone.load_state_dict(weights)
        training.optimiser.load_state_dict(optimiser_state)
    restored: Progress = progress
    return restored


def _report_callback(report: StepReport) -> Callback:
    """Return a callback that reports each logged loss."""

    def report_step(training: Training) -> None:
        if training.is_due(training.settings.log_every):
            report(training.progress.step, training.progress.losses[-1])

    return report_step


def _train_and_write_branch(
    run: Run,
    run_lock: RunLock | None,
    stop: _StopFlag,
    training: Training,
    steps: int,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train the branch that ends after `steps` steps, write its weights, and restore the state of the training run.

    The seconds of the branch are added to the training run. A checkpoint with this sum is written before the weights of
    the branch, which mark the branch as finished. The seconds therefore count exactly once, even if the process is
    killed.
    """
    log.info("run '%s': branch of %d steps, from step %d", run.name, steps, training.progress.step)
    training.check()
    _save(run, run_lock, stop, training)
    with restore_after(training) as progress:
        restored = _restore(run, training, steps)
        all_callbacks = [*callbacks, _checkpoint_callback(run, run_lock, stop, steps)]
        weights = train_branch(training, restored if restored.step else progress, steps, all_callbacks)
        branch_progress = training.progress
    training.progress.seconds, training.progress.bytes = branch_progress.seconds, branch_progress.bytes
    _save(run, run_lock, stop, training)
    if run_lock is not None:
        with stop.defer_interrupt(), _writing_to_run(run, run_lock):
            record.write_branch(run, steps, weights)


def _save(run: Run, run_lock: RunLock | None, stop: _StopFlag, training: Training, branch: int | None = None) -> None:
    """Write a checkpoint if this is the first process."""
    if run_lock is None:
        return
    with stop.defer_interrupt(), _writing_to_run(run, run_lock):
        checkpoint.save(run, training.backbone, training.optimiser, training.progress, branch)


def _checkpoint_callback(run: Run, run_lock: RunLock | None, stop: _StopFlag, branch: int | None = None) -> Callback:
    """Return a callback that checks the training, writes checkpoints, and raises `Interrupted` after a signal."""

    def write_checkpoint(training: Training) -> None:
        if training.should_stop or training.is_due(training.settings.checkpoint_every):
            training.check()
            _save(run, run_lock, stop, training, branch)
        if training.should_stop and not training.is_last:
            position = f"step {training.progress.step}" + (f" of its branch of {branch} steps" if branch else "")
            raise Interrupted(f"interrupted; the same command continues run '{run.name}' from {position}")

    return write_checkpoint


@contextlib.contextmanager
def _writing_to_run(run: Run, run_lock: RunLock) -> Iterator[None]:
    """Prepare to write files to the folder of a run. Restore the folder if it was deleted or moved, and convert errors
    within the block."""
    with write_errors(run.path):
        run_lock.restore()
        yield


class _StopFlag:
    """Counts SIGINT and SIGTERM. Its truth value is True after the first signal.

    Args:
        run: the run that is trained.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._signals_seen, self._is_deferred = run, 0, False

    def __bool__(self) -> bool:
        return self._signals_seen > 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Count a signal. At the third one, raise `Interrupted`, so that users need not wait for the end of a long
        step."""
        self._signals_seen += 1
        if self._signals_seen >= _SIGNALS_TO_END and not self._is_deferred:
            step = self._run.checkpoint_step
            raise Interrupted(
                f"interrupted at once; the same command continues run '{self._run.name}' from step {step}"
            )

    @contextlib.contextmanager
    def defer_interrupt(self) -> Iterator[None]:
        """Within the block, do not interrupt the training, because files are being written."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False


@contextlib.contextmanager
def _count_signals(run: Run) -> Iterator[_StopFlag]:
    """Within the block, count SIGINT and SIGTERM instead of ending the process, so that training can stop between two
    steps."""
    stop = _StopFlag(run)
    try:
        previous = {s: signal.signal(s, stop.handle) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, the only one that can set signal handlers
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
