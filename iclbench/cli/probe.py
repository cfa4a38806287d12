"""`iclbench probe [RUN...]`: probe the layers of a model, the rank of its predictions, or its sample representation."""

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
from iclbench.core.errors import UsageError


def command(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.runs, help="Runs to probe (default: all finished runs that support the probe)."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            "--context", min=1, help="Number of examples in the context. May be repeated.", show_default="as trained"
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", min=2, help="Number of functions on which layers are probed.", show_default="128"),
    ] = None,
    fit: Annotated[
        int | None,
        typer.Option(
            "--fit",
            min=2,
            help="Number of queries per function for fitting the scale and shift of each layer's predictions. For "
            "streams: number of episodes for fitting linear probes.",
            show_default="10; 4096",
        ),
    ] = None,
    test: Annotated[
        int | None,
        typer.Option(
            "--test",
            min=1,
            help="Number of scored queries per function. For streams: number of scored episodes.",
            show_default="40; 1024",
        ),
    ] = None,
    rank: Annotated[bool, typer.Option("--rank", help="Measure the rank of the prediction matrix.")] = False,
    contexts: Annotated[
        int | None,
        typer.Option("--contexts", min=4, help="Maximum number of rows of the prediction matrix.", show_default="64"),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option("--queries", min=1, help="Number of columns of the prediction matrix.", show_default="128"),
    ] = None,
    representation: Annotated[
        bool, typer.Option("--representation", help="Decode the true features from the sample representation.")
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
    """Apply the model's read-out to every layer, with a scale and a shift fitted per function, and compare the layers
    with steps of GD and GD++. On streams, decode the task's probe targets from the hidden state of every layer with a
    linear map. Alternatively, measure the rank of the predictions, or probe the sample representation."""
    from iclbench.core.context import Context

    if rank and representation:
        raise UsageError("--rank and --representation cannot be used together", code="conflict")
    if representation and (context or shift != "none"):
        raise UsageError("--representation cannot be used with --context or --shift", code="conflict")
    layer_sizes, rank_sizes = (
        _options_with_values(tasks=tasks, fit=fit, test=test),
        _options_with_values(contexts=contexts, queries=queries),
    )
    if rank_sizes and not rank:
        raise UsageError(f"--{next(iter(rank_sizes))} needs --rank", code="missing-value")
    if layer_sizes and (rank or representation):
        name, other_option = next(iter(layer_sizes)), "--rank" if rank else "--representation"
        raise UsageError(f"--{name} cannot be used with {other_option}", code="conflict")
    runs = selected_runs(results, run)
    probe_context = Context(results, data_dir, set_up_torch(device, threads))
    from iclbench.cli.probe_runs import probe_runs

    probe_runs(
        runs, bool(run), context, layer_sizes | rank_sizes, rank, representation, shift, seed, probe_context, json
    )


def _options_with_values(**options: int | None) -> dict[str, int]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}
