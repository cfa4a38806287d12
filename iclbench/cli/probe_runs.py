"""Probes runs one by one, and prints what was found."""

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
from iclbench.probing.probe import NotProbedError
from iclbench.probing.probe import probe as probe_layers
from iclbench.probing.rank import probe_rank
from iclbench.probing.representation import probe_representation
from iclbench.store.runs import Run


def probe_runs(
    runs: Sequence[Run],
    named: bool,
    context: list[int] | None,
    sizes: Mapping[str, int],
    rank: bool,
    representation: bool,
    shift: str,
    seed: int,
    where: Context,
    json: bool,
) -> None:
    """Probe runs and print the tables; of runs that were not named, those that cannot be probed are skipped. Numbers of
    tasks, queries or contexts are the probe's own but for those in `sizes`.

    Raises:
        UsageError: a run that was named cannot be probed, or none can.
        typer.Exit: something failed.
    """
    of_all: dict[str, Any] = {"seed": seed}
    of_contexts = of_all | {"shift": shift, **sizes}
    cells_of: Callable[[Run], Iterator[CellResult]]
    if rank:
        cells_of = partial(probe_rank, where, sizes=context, **of_contexts)
        table, title, what = probe_tables.rank_table, probe_tables.rank_title, "predictions whose rank can be measured"
    elif representation:
        cells_of = partial(probe_representation, where, **of_all)
        table, title = probe_tables.representation_table, probe_tables.representation_title
        what = "a sample representation to probe"
    else:
        cells_of = partial(probe_layers, where, contexts=context, **of_contexts)
        table, title, what = probe_tables.depth_table, probe_tables.examples_in_context, "layers to probe"
    failed = 0
    probed: list[str] = []
    refused: dict[str, UsageError] = {}
    for each in runs:
        try:
            failed += follow(each.name, cells_of(each), probed, say)
        except UsageError as error:
            if named:
                raise
            refused[each.name] = error  # it was not named, so the others go on
    wrong = dict.fromkeys(str(why) for why in refused.values() if not isinstance(why, NotProbedError))
    if not probed:
        for why in refused.values():
            if isinstance(why, UntrustedError):
                raise why
        raise UsageError("; ".join(wrong) or f"no finished run in {where.results} has {what}")
    for name, why in refused.items():
        say(f"skipped run '{name}': {why}")
    print_tables(where.results, probed, json, table, title)
    if failed:
        say(f"{failed} failed; the same command tries them again")
    if failed or wrong:
        raise typer.Exit(1)


def follow(name: str, cells: Iterator[CellResult], probed: list[str], say: Callable[[str], None]) -> int:
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
