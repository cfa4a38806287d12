"""Run a sweep from its first cell to the final table, and start workers on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import typer

from iclbench.cli.options import set_up_torch
from iclbench.cli.sweep_summary import print_outcomes, untuned_lines, waiting_line
from iclbench.cli.sweep_view import view
from iclbench.cli.terminal import say
from iclbench.core import cores
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted
from iclbench.core.formats import plural
from iclbench.store.cells import CellStore
from iclbench.store.runs import write_errors
from iclbench.sweep import engine
from iclbench.sweep import plan as plans
from iclbench.sweep.executor import Executor
from iclbench.sweep.local import LocalPool
from iclbench.sweep.plan import Plan
from iclbench.sweep.work import set_up


def run(
    plan: Plan,
    store: CellStore,
    start: Callable[[], Executor],
    context: Context,
    json: bool,
    slots: int,
    bundling: engine.Bundling = engine.SINGLE_CELLS,
) -> None:
    """Compute the cells of a plan, and print their outcomes.

    Args:
        plan: the plan.
        store: the results folder.
        start: function that starts the executor.
        context: results folder, data and device.
        json: whether to print JSON.
        slots: number of cells that are computed in parallel.
        bundling: the rule that groups cells into bundles.

    Raises:
        Interrupted: on Ctrl-C; finished cells are stored.
        typer.Exit: with 1, if cells failed.
    """
    with write_errors(context.results):
        context.results.mkdir(parents=True, exist_ok=True)
    for line in untuned_lines(plan, context.results):
        say(line)
    was_interrupted = False
    with view(plan, store, slots, context.device) as progress:
        workers = start()
        try:
            engine.run(plan, store, workers, context, progress, bundling=bundling)
        except KeyboardInterrupt:
            was_interrupted = True  # reported after the live table is closed
        finally:
            workers.shutdown()
    if was_interrupted:
        stored_cells, n_remaining = plural(progress.settled_count, "cell"), len(plan.todo) - progress.settled_count
        raise Interrupted(f"interrupted; {stored_cells} stored; the same command computes the other {n_remaining}")
    failed_count = print_outcomes(plans.make_plan(plan.cells, CellStore(context.results)), progress.outcomes, json)
    if plan.waiting:
        say(waiting_line(plan))
    if failed_count:
        say(f"{plural(failed_count, 'cell')} failed; run the same command again to retry")
        raise typer.Exit(1)


def run_locally(
    plan: Plan, store: CellStore, worker_gpus: Sequence[str | None], context: Context, json: bool = False
) -> None:
    """Compute the cells of a plan in processes on this machine, one cell per worker at a time.

    Args:
        plan: the plan.
        store: the results folder.
        worker_gpus: the GPU of each worker; None for a worker without a GPU.
        context: results folder, data and device.
        json: whether to print JSON.

    Raises:
        Interrupted: on Ctrl-C; finished cells are stored.
        typer.Exit: with 1, if cells failed.
    """
    used_gpus = worker_gpus[: max(1, len(plan.todo))]
    run(plan, store, lambda: worker_pool(used_gpus, context.threads), context, json, len(worker_gpus))


def gpus_of_workers(gpus: Sequence[str] = (), per_gpu: int = 1, workers: int | None = None) -> list[str | None]:
    """Return the GPU of each worker: `per_gpu` workers per GPU or, without GPUs, one worker per core (None). `workers`
    sets the total number of workers."""
    worker_gpus: list[str | None] = [gpu for gpu in gpus for _ in range(per_gpu)] or [None] * cores.count_available()
    return worker_gpus if workers is None else [worker_gpus[i % len(worker_gpus)] for i in range(workers)]


def devices(device: str) -> tuple[str, list[str]]:
    """Return the device type of the cells, and the workers' GPUs as names for `CUDA_VISIBLE_DEVICES`."""
    torch_device = set_up_torch(device, 1)
    if not torch_device.startswith("cuda"):
        return torch_device, []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    index = torch.device(torch_device).index
    return "cuda", names[: torch.cuda.device_count()] if index is None else [names[index]]


def worker_pool(worker_gpus: Sequence[str | None], threads: int) -> LocalPool:
    """Start a pool of worker processes, each with its own GPU or none."""
    return LocalPool([(threads, gpu) for gpu in worker_gpus], set_up)
