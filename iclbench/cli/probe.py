"""`iclbench probe [RUN...]`: what every layer of a model knows, the rank of its predictions, what its sample
representation has learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from iclbench.config.runs import Run
    from iclbench.evaluation.cells import Cell


def probe(
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
    tasks: Annotated[int, typer.Option("--tasks", min=2, help="Functions to probe layers on.")] = 128,
    fit: Annotated[int, typer.Option("--fit", min=2, help="Queries to fit scale and shift on, per task.")] = 10,
    test: Annotated[int, typer.Option("--test", min=1, help="Queries to score, per task.")] = 40,
    rank: Annotated[bool, typer.Option("--rank", help="The rank of the matrix of predictions instead.")] = False,
    contexts: Annotated[int, typer.Option("--contexts", min=4, help="Rows of that matrix: up to so many.")] = 64,
    queries: Annotated[int, typer.Option("--queries", min=1, help="Columns of that matrix.")] = 128,
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
    from iclbench.cli import probe_tables
    from iclbench.cli.summary import print_tables
    from iclbench.cli.terminal import say
    from iclbench.config.trust import UntrustedError
    from iclbench.core.errors import UsageError

    if rank and representation:
        raise UsageError("--rank and --representation are probes of their own; ask for one at a time")
    if representation and (context or shift != "none"):
        raise UsageError("--representation reads inputs without a context or a shift; leave --context and --shift out")
    runs = chosen_runs(results, run)
    chosen = set_up_torch(device, threads)
    from iclbench.probing.probe import NotProbedError
    from iclbench.probing.probe import probe as probe_layers
    from iclbench.probing.rank import probe_rank
    from iclbench.probing.representation import probe_representation

    of_all: dict[str, Any] = {"seed": seed, "data_dir": data_dir}
    of_contexts = of_all | {"shift": shift}
    asked: Callable[[Run], Iterator[Cell]] = partial(
        probe_layers, results, contexts=context, fit=fit, test=test, tasks=tasks, device=chosen, **of_contexts
    )
    table, title, what = probe_tables.depth_table, probe_tables.examples_in_context, "layers to probe"
    if rank:
        asked = partial(probe_rank, results, sizes=context, contexts=contexts, queries=queries, **of_contexts)
        table, title, what = probe_tables.rank_table, probe_tables.rank_title, "predictions whose rank can be measured"
    elif representation:
        asked = partial(probe_representation, results, **of_all)
        table, title = probe_tables.representation_table, probe_tables.representation_title
        what = "a sample representation to probe"
    failed = 0
    probed: list[str] = []
    refused: dict[str, UsageError] = {}
    for each in runs:
        try:
            failed += follow(each.name, asked(each), probed, say)
        except UsageError as error:
            if run:
                raise
            refused[each.name] = error  # nobody asked for this one by name: the others go on
    wrong = dict.fromkeys(str(why) for why in refused.values() if not isinstance(why, NotProbedError))
    if not probed:
        for why in refused.values():
            if isinstance(why, UntrustedError):
                raise why
        raise UsageError("; ".join(wrong) or f"no finished run in {results} has {what}")
    for name, why in refused.items():
        say(f"skipped run '{name}': {why}")
    print_tables(results, probed, json, table, title)
    if failed:
        say(f"{failed} failed; the same command tries them again")
    if failed or wrong:
        raise typer.Exit(1)


def follow(name: str, cells: Iterator[Cell], probed: list[str], say: Callable[[str], None]) -> int:
    """Go through the cells of one run; returns the number of failed ones and notes the probe sets."""
    failed = 0
    for cell in cells:
        if cell.prompts.id not in probed:
            probed.append(cell.prompts.id)
            say(f"probe {name} on {cell.prompts.id}{' (kept)' if cell.cached else ''}")
        if cell.reason:
            failed += 1
            say(f"failed: {cell.contestant.run} on {cell.prompts.id}: {cell.reason}")
    return failed
