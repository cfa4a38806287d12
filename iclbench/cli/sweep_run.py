"""A sweep from its first cell to the table that ends it, and the workers of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import typer

from iclbench.cli.options import set_up_torch
from iclbench.cli.sweep_summary import left_alone, print_outcomes, untuned_lines
from iclbench.cli.sweep_view import view
from iclbench.cli.terminal import say
from iclbench.core import cores
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted
from iclbench.core.formats import plural
from iclbench.store.cells import Store
from iclbench.store.runs import writing
from iclbench.sweep import engine
from iclbench.sweep import plan as plans
from iclbench.sweep.executor import Executor
from iclbench.sweep.local import LocalPool
from iclbench.sweep.plan import Plan
from iclbench.sweep.work import set_up


def run(
    plan: Plan,
    store: Store,
    start: Callable[[], Executor],
    context: Context,
    json: bool,
    slots: int,
    bundling: engine.Bundling = engine.ALONE,
) -> None:
    """Do what is to do, and say what became of it.

    Args:
        start: the executor.
        slots: how much goes on side by side.

    Raises:
        Interrupted: Ctrl-C; what is finished is kept.
        typer.Exit: with 1, where cells failed.
    """
    with writing(context.results):
        context.results.mkdir(parents=True, exist_ok=True)
    for line in untuned_lines(plan, context.results):
        say(line)
    interrupted = False
    with view(plan, store, slots, context.device) as report:
        workers = start()
        try:
            engine.run(plan, store, workers, context, report, bundling=bundling)
        except KeyboardInterrupt:
            interrupted = True  # to be said below the table, not above it
        finally:
            workers.shutdown()
    if interrupted:
        settled, rest = plural(report.settled, "cell"), len(plan.todo) - report.settled
        raise Interrupted(f"interrupted; {settled} kept, the same command does the other {rest}")
    failed = print_outcomes(plans.plan(plan.cells, Store(context.results)), report.outcomes, json)
    if plan.waiting:
        say(left_alone(plan))
    if failed:
        say(f"{plural(failed, 'cell')} failed; the same command tries them again")
        raise typer.Exit(1)


def work_through(plan: Plan, store: Store, slots: Sequence[str | None], context: Context, json: bool = False) -> None:
    """Do what is to do in processes of this machine, as many cells at a time as there are slots.

    Args:
        slots: the GPU that each worker sees; None: none.

    Raises:
        Interrupted: Ctrl-C; what is finished is kept.
        typer.Exit: with 1, where cells failed.
    """
    run(plan, store, lambda: pool(slots[: max(1, len(plan.todo))], context.threads), context, json, len(slots))


def worker_slots(gpus: Sequence[str] = (), per_gpu: int = 1, workers: int | None = None) -> list[str | None]:
    """The GPU that each worker sees: so many workers on each, or one worker per core without a GPU (None); `workers`
    sets their number."""
    slots: list[str | None] = [gpu for gpu in gpus for _ in range(per_gpu)] or [None] * cores.available()
    return slots if workers is None else [slots[i % len(slots)] for i in range(workers)]


def devices(device: str) -> tuple[str, list[str]]:
    """The kind of device that cells compute on, and the GPUs that workers may see, as `CUDA_VISIBLE_DEVICES` names
    them."""
    torch_device = set_up_torch(device, 1)
    if not torch_device.startswith("cuda"):
        return torch_device, []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    index = torch.device(torch_device).index
    return "cuda", names[: torch.cuda.device_count()] if index is None else [names[index]]


def pool(slots: Sequence[str | None], threads: int) -> LocalPool:
    """Worker processes, each of which sees the GPU of its slot."""
    return LocalPool([(threads, gpu) for gpu in slots], set_up)
