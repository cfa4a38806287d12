"""`iclbench train TASK BACKBONE`: trains a run; the same command again continues it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from iclbench.cli.options import set_up_torch
from iclbench.cli.terminal import out, say, step_bar
from iclbench.config.resolution import resolve_run
from iclbench.config.runs import Run, check_name, create, run_name
from iclbench.config.sizes import check_size
from iclbench.config.trust import typed
from iclbench.core.context import Context
from iclbench.training.trackers import check_trackers, tracked


def train(
    task: str,
    backbone: str,
    preset: str,
    seed: int,
    override: list[str] | None,
    config: Path | None,
    name: str | None,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    log: list[str],
) -> None:
    """Train a backbone on a task. The same command again continues the run where it stopped."""
    typed(backbone)
    check_trackers(log)
    chosen = set_up_torch(device, threads)
    frozen = resolve_run(task, backbone, preset, seed, override or [], config)
    known = Run(results / "runs" / (check_name(name) if name else run_name(frozen)))
    if not known.begun:  # who goes on with a run knows how big it is
        check_size(task, backbone, preset, override or [], config)
    run = create(results, frozen, name, data_dir)
    if run.finished:
        say(f"run '{run.name}' is finished")
    else:
        train_run(run, chosen, threads, data_dir, log=log)
    out.print(run.name)


def train_run(
    run: Run, device: str, threads: int, data_dir: Path | None, label: str | None = None, log: Sequence[str] = ()
) -> None:
    """Train a run with a progress bar, which also shows the accuracies of the last evaluation, and for trackers."""
    from iclbench.evaluation.monitor import Monitor
    from iclbench.training.run import train as run_training

    with tracked(run, log) as trackers, step_bar(label or run.name, run.config.train.steps) as update:
        last: dict[str, float] = {}

        def report(step: int, loss: float) -> None:
            found = [f"{name} {accuracy:.2f}" for name, accuracy in last.items()]
            update(step, " ".join([f"loss {loss:.4f}", *found]))
            for tracker in trackers:
                tracker.log(step, {"loss": loss, **last})

        context = Context(data_dir=data_dir, device=device, threads=threads)
        run_training(run, context, report, partial(Monitor, watch=last.update))
