"""`iclbench probe [RUN...]`: what every layer of a model knows, the rank of its predictions, what its sample
representation has learned."""

from __future__ import annotations

from pathlib import Path

from iclbench.cli.options import chosen_runs, set_up_torch
from iclbench.core.context import Context
from iclbench.core.errors import UsageError


def probe(
    run: list[str] | None,
    context: list[int] | None,
    tasks: int | None,
    fit: int | None,
    test: int | None,
    rank: bool,
    contexts: int | None,
    queries: int | None,
    representation: bool,
    shift: str,
    seed: int,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    json: bool,
) -> None:
    """Decode every layer by the model's own read-out, up to a scale and a shift per task, beside GD and GD++; or
    measure the rank of its predictions; or what its sample representation has learned."""
    if rank and representation:
        raise UsageError("--rank and --representation are probes of their own; ask for one at a time")
    if representation and (context or shift != "none"):
        raise UsageError("--representation reads inputs without a context or a shift; leave --context and --shift out")
    of_layers, of_rank = _typed(tasks=tasks, fit=fit, test=test), _typed(contexts=contexts, queries=queries)
    if of_rank and not rank:
        raise UsageError(f"--{next(iter(of_rank))} is an option of --rank; leave it out")
    if of_layers and (rank or representation):
        name, which = next(iter(of_layers)), "--rank" if rank else "--representation"
        raise UsageError(f"--{name} is an option of the probe of layers, not of {which}; leave it out")
    runs = chosen_runs(results, run)
    chosen = set_up_torch(device, threads)
    from iclbench.cli.probe_runs import probe_runs

    where = Context(results, data_dir, chosen)
    probe_runs(runs, bool(run), context, of_layers | of_rank, rank, representation, shift, seed, where, json)


def _typed(**options: int | None) -> dict[str, int]:
    """Those that were."""
    return {name: value for name, value in options.items() if value is not None}
