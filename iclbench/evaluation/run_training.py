"""Training of a run with its monitor, and with reports of loss and accuracies to a progress bar and to trackers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from iclbench.config.cards import decay_start
from iclbench.core.context import Context
from iclbench.evaluation.monitor import Monitor
from iclbench.store.runs import Run
from iclbench.training.processes import SINGLE_PROCESS, Processes
from iclbench.training.run import train
from iclbench.training.trackers import open_trackers


def train_with_monitor(
    run: Run,
    context: Context,
    update: Callable[[int, str], None] = lambda step, text: None,
    log: Sequence[str] = (),
    wait: bool = False,
    processes: Processes = SINGLE_PROCESS,
) -> None:
    """Train a run with `iclbench.training.run.train`, evaluate it during training, and report its progress.

    Args:
        run: the run.
        context: device and data sets.
        update: called with the number of finished steps and with a text that contains the loss and the accuracies of
            the last evaluation.
        log: names of the trackers that log the loss and the accuracies.
        wait: whether to wait if another process is training this run, and to continue after it has ended.
        processes: the group of processes that train the run.
    """
    accuracies: dict[str, float] = {}
    with open_trackers(run, log) as trackers:

        def report(step: int, loss: float) -> None:
            update(
                step,
                " ".join([f"loss {loss:.4f}", *(f"{name} {accuracy:.2f}" for name, accuracy in accuracies.items())]),
            )
            for tracker in trackers:
                tracker.log(step, {"loss": loss, **accuracies})

        def report_branch(end: int, step: int, loss: float) -> None:
            update(decay_start(end), f"branch of {end:,} steps: {step:,} done, loss {loss:.4f}")

        train(run, context, report, partial(Monitor, watch=accuracies.update), wait, report_branch, processes)
