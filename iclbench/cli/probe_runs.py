"""Probe runs one by one, and print the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import typer

from iclbench.cli import probe_tables
from iclbench.cli.summary import print_tables
from iclbench.cli.terminal import say
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.trust import UntrustedError
from iclbench.evaluation.cells import CellResult
from iclbench.probing.cells import NotProbedError
from iclbench.probing.probe import probe as probe_layers
from iclbench.probing.rank import probe_rank
from iclbench.probing.representation import probe_representation
from iclbench.store.runs import Run


def probe_runs(
    runs: Sequence[Run],
    is_user_selection: bool,
    context: list[int] | None,
    sizes: Mapping[str, int],
    rank: bool,
    representation: bool,
    shift: str,
    seed: int,
    probe_context: Context,
    json: bool,
) -> None:
    """Probe runs and print the tables.

    Runs that do not support the probe are skipped, unless the user selected them. `sizes` overrides the probe's default
    numbers of functions, queries or contexts.

    Raises:
        UsageError: a selected run does not support the probe, or no run does.
        typer.Exit: with code 1 if a cell failed.
    """
    options: dict[str, Any] = {"seed": seed}
    context_options = options | {"shift": shift, **sizes}
    probe_cells: Callable[[Run], Iterator[CellResult]]
    if rank:
        probe_cells = partial(probe_rank, probe_context, sizes=context, **context_options)
        table, title = probe_tables.rank_table, probe_tables.rank_title
        requirement = "predictions whose rank can be measured"
    elif representation:
        probe_cells = partial(probe_representation, probe_context, **options)
        table, title = probe_tables.representation_table, probe_tables.representation_title
        requirement = "a sample representation to probe"
    else:
        probe_cells = partial(probe_layers, probe_context, contexts=context, **context_options)
        table, title, requirement = probe_tables.depth_table, probe_tables.examples_in_context, "layers to probe"
    failed_count = 0
    prompt_sets: list[str] = []
    refusals: dict[str, UsageError] = {}
    for run in runs:
        try:
            failed_count += compute_cells(run.name, probe_cells(run), prompt_sets, say)
        except UsageError as error:
            if is_user_selection:
                raise
            refusals[run.name] = error  # continue with the other runs
    errors = dict.fromkeys(str(reason) for reason in refusals.values() if not isinstance(reason, NotProbedError))
    if not prompt_sets:
        for reason in refusals.values():
            if isinstance(reason, UntrustedError):
                raise reason
        message = "; ".join(errors) or f"no finished run in {probe_context.results} has {requirement}"
        raise UsageError(message, code=next((error.code for error in refusals.values()), "not-applicable"))
    for name, reason in refusals.items():
        say(f"skipped run '{name}': {reason}")
    print_tables(probe_context.results, prompt_sets, json, table, title)
    if failed_count:
        say(f"{failed_count} failed; run the same command again to retry")
    if failed_count or errors:
        raise typer.Exit(1)


def compute_cells(name: str, cells: Iterator[CellResult], prompt_sets: list[str], say: Callable[[str], None]) -> int:
    """Compute the cells of one run, and add their probe sets to `prompt_sets`. Return the number of failed cells."""
    failed_count = 0
    for cell in cells:
        if cell.prompts.id not in prompt_sets:
            prompt_sets.append(cell.prompts.id)
            say(f"probe {name} on {cell.prompts.id}{' (cached)' if cell.cached else ''}")
        if cell.reason:
            failed_count += 1
            say(f"failed: {cell.contestant.run} on {cell.prompts.id}: {cell.reason}")
    return failed_count
