"""`iclbench demo`: the main job on embedded defaults, in a few minutes on a laptop."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import typer

from iclbench.cli.options import set_up_torch
from iclbench.core.context import Context

if TYPE_CHECKING:
    from iclbench.config.runs import Run

# Small enough that in-context learning is plain to see after a minute or two on one core: three dimensions, 15
# examples.
TASKS = ("linear", "skewed-linear")
# Mamba first: its steps take longer, and the workers should end together.
BACKBONES: dict[str, tuple[str, ...]] = {"mamba": ("backbone.state=4",), "gpt2": ()}
SETTINGS = (
    "task.dim=3",
    "task.points=15",
    "task.episodes=96",
    "backbone.layers=3",
    "train.steps=600",
    "train.curriculum.dims.start=1",
    "train.curriculum.dims.every=75",
    "train.curriculum.points.every=50",
)
BASELINES = ("ridge", "zero", "averaging", "knn-3", "lasso-1e-2", "gp-rbf", "gd", "gd-plus-plus", "mlp", "xgboost")
SHIFTS = ("orthants",)
EXTRAPOLATE = 45


def demo(results: Path) -> None:
    """Train small backbones on two tasks, evaluate them beside baselines, probe their layers, write the report."""
    set_up_torch("cpu", 1)
    from iclbench.cli.eval_runs import evaluate_run
    from iclbench.cli.probe_runs import follow
    from iclbench.cli.summary import print_summary
    from iclbench.cli.terminal import out, say
    from iclbench.config.resolution import resolve_run
    from iclbench.config.runs import create
    from iclbench.probing.probe import probe
    from iclbench.report import build

    grid = [(task, backbone, [*SETTINGS, *own]) for backbone, own in BACKBONES.items() for task in TASKS]
    runs = [
        create(results, resolve_run(task, backbone, "small", 0, settings), f"demo-{task}-{backbone}")
        for task, backbone, settings in grid
    ]
    workers = min(len(runs), os.cpu_count() or 1)
    say(f"1/4 training {', '.join(run.name for run in runs)}, {workers} at a time")
    _train_all(runs, workers)
    say("2/4 evaluating on frozen prompts, beside the baselines")
    evaluated: list[str] = []
    failed = sum(
        evaluate_run(Context(results), run, list(SHIFTS), EXTRAPOLATE, baseline=list(BASELINES), evaluated=evaluated)
        for run in runs
    )
    say("3/4 probing every layer, beside gradient descent")
    failed += sum(follow(run.name, probe(Context(results), run), [], say) for run in runs)
    say("4/4 writing the report")
    page = build(results, results / "report").page
    print_summary(results, [name for name in evaluated if "-none-" in name])
    out.print(f"report: {page.resolve()}")
    if failed:
        raise typer.Exit(1)


def _train_all(runs: list[Run], workers: int) -> None:
    """Train all runs side by side, one thread each, under one bar."""
    from iclbench.cli.terminal import step_bar

    spawn = get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        queue = manager.Queue()
        waiting = {pool.submit(_train_one, run, queue) for run in runs}
        steps = {run.name: run.config.train.steps if run.finished else 0 for run in runs}
        losses: dict[str, float] = {}
        with step_bar("train", sum(run.config.train.steps for run in runs)) as update:
            while waiting:
                waiting -= {future for future in waiting if future.done() and not future.result()}
                try:
                    name, step, loss = queue.get(timeout=0.5)
                except Empty:
                    continue
                steps[name], losses[name] = step, loss
                update(sum(steps.values()), ", ".join(f"{k} loss {v:.3f}" for k, v in sorted(losses.items())))


def _train_one(run: Run, queue: Any) -> None:
    """In a process of its own."""
    set_up_torch("cpu", 1)
    from iclbench.training.run import train

    train(run, report=lambda step, loss: queue.put((run.name, step, loss)))
