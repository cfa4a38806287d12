"""`iclbench cost [RUN...]`: measure time and memory of runs and baselines on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import (
    RESULTS,
    DataDir,
    Device,
    Json,
    MaxBytes,
    Results,
    Threads,
    Trust,
    selected_runs,
    set_up_torch,
)


def command(
    run: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=completion.runs, help="Runs to measure (default: all finished runs)."),
    ] = None,
    points: Annotated[
        list[int] | None,
        typer.Option(
            "--points",
            min=1,
            help="Number of points in the context. May be repeated.",
            show_default="40 and 500; for streams and events, half of the training length and the training length",
        ),
    ] = None,
    queries: Annotated[
        list[int] | None,
        typer.Option("--queries", min=1, help="Number of queries in one call, in addition to 1. May be repeated."),
    ] = None,
    updates: Annotated[
        list[int] | None,
        typer.Option("--update", min=1, help="Number of points in one update, in addition to 1. May be repeated."),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Number of episodes in a batch.")] = 64,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            autocompletion=completion.baselines,
            help="Also measure this baseline, or all baselines of the task's card (all). May be repeated.",
        ),
    ] = None,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Measure parameters and state size, and FLOPs, time and memory of training, conditioning, queries and updates."""
    from iclbench.config.cards import load_baseline
    from iclbench.core.context import Context

    runs = selected_runs(results, run)
    for name in baseline or []:
        if name != "all":
            load_baseline(name)  # report a mistyped name before the measurements
    context = Context(results, data_dir, set_up_torch(device, threads))
    from iclbench.cli.cost_runs import CostSizes, measure_all

    sizes = CostSizes(points or [], queries or [], updates or [], episodes)
    if measure_all(context, runs, baseline or [], sizes, json):
        raise typer.Exit(1)
