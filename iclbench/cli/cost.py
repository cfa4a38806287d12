"""`iclbench cost [RUN...]`: what runs and baselines cost in time and memory, measured on this machine."""

from __future__ import annotations

from pathlib import Path

import typer

from iclbench.cli.options import chosen_runs, set_up_torch
from iclbench.config.cards import load_baseline
from iclbench.core.context import Context


def cost(
    run: list[str] | None,
    points: list[int] | None,
    queries: list[int] | None,
    updates: list[int] | None,
    episodes: int,
    baseline: list[str] | None,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    json: bool,
) -> None:
    """Measure parameters, state, FLOPs, time and memory of a training step, conditioning, a query and an update."""
    runs = chosen_runs(results, run)
    for name in baseline or []:
        if name != "all":
            load_baseline(name)  # a mistyped name fails before anything is measured
    chosen = set_up_torch(device, threads)
    from iclbench.cli.cost_runs import Sizes, measure_all

    sizes = Sizes(points or [40, 500], queries or [], updates or [], episodes)
    if measure_all(Context(results, data_dir, chosen), runs, baseline or [], sizes, json):
        raise typer.Exit(1)
