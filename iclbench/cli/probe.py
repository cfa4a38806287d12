"""`iclbench probe [RUN...]`: what every layer of a model knows, the rank of its predictions, what its sample
representation has learned."""

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
    chosen_runs,
    set_up_torch,
)
from iclbench.core.errors import UsageError


def command(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.runs, help="Runs to probe; none: all finished ones that can be probed so."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=1, help="Examples in context; may be repeated.", show_default="as trained"),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=2, help="Functions to probe layers on.", show_default="128")
    ] = None,
    fit: Annotated[
        int | None, typer.Option("--fit", min=2, help="Queries to fit scale and shift on, per task.", show_default="10")
    ] = None,
    test: Annotated[
        int | None, typer.Option("--test", min=1, help="Queries to score, per task.", show_default="40")
    ] = None,
    rank: Annotated[bool, typer.Option("--rank", help="The rank of the matrix of predictions instead.")] = False,
    contexts: Annotated[
        int | None, typer.Option("--contexts", min=4, help="Rows of that matrix: up to so many.", show_default="64")
    ] = None,
    queries: Annotated[
        int | None, typer.Option("--queries", min=1, help="Columns of that matrix.", show_default="128")
    ] = None,
    representation: Annotated[
        bool, typer.Option("--representation", help="True features read off the sample representation instead.")
    ] = False,
    shift: Annotated[
        str, typer.Option("--shift", autocompletion=completion.shifts, help="Probe under this shift.")
    ] = "none",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the probe set.")] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Decode every layer by the model's own read-out, up to a scale and a shift per task, beside GD and GD++; or
    measure the rank of its predictions; or what its sample representation has learned."""
    from iclbench.core.context import Context

    if rank and representation:
        raise UsageError("--rank and --representation are probes of their own; ask for one at a time")
    if representation and (context or shift != "none"):
        raise UsageError("--representation reads inputs without a context or a shift; leave --context and --shift out")
    layer_sizes, rank_sizes = _given(tasks=tasks, fit=fit, test=test), _given(contexts=contexts, queries=queries)
    if rank_sizes and not rank:
        raise UsageError(f"--{next(iter(rank_sizes))} is an option of --rank; leave it out")
    if layer_sizes and (rank or representation):
        name, which = next(iter(layer_sizes)), "--rank" if rank else "--representation"
        raise UsageError(f"--{name} is an option of the probe of layers, not of {which}; leave it out")
    runs = chosen_runs(results, run)
    where = Context(results, data_dir, set_up_torch(device, threads))
    from iclbench.cli.probe_runs import probe_runs

    probe_runs(runs, bool(run), context, layer_sizes | rank_sizes, rank, representation, shift, seed, where, json)


def _given(**options: int | None) -> dict[str, int]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value is not None}
