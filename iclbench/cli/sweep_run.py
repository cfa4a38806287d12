"""A sweep from its first cell to the table that ends it, whatever runs the cells."""

from __future__ import annotations

from collections.abc import Callable

import typer

from iclbench.cli.sweep_summary import left_alone, print_outcomes, untuned_lines
from iclbench.cli.sweep_view import view
from iclbench.cli.terminal import say
from iclbench.config.runs import writing
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted
from iclbench.core.formats import plural
from iclbench.sweep import engine
from iclbench.sweep import plan as plans
from iclbench.sweep.executor import Executor
from iclbench.sweep.plan import Plan
from iclbench.sweep.store import Store


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
        kept, left = plural(report.settled, "cell"), len(plan.todo) - report.settled
        raise Interrupted(f"interrupted; {kept} kept, the same command does the other {left}")
    failed = print_outcomes(plans.plan(plan.cells, Store(context.results)), report.outcomes, json)
    if plan.waiting:
        say(left_alone(plan))
    if failed:
        say(f"{plural(failed, 'cell')} failed; the same command tries them again")
        raise typer.Exit(1)
