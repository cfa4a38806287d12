"""`iclbench sweep GRID --engine slurm`: the same cells as jobs of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import typer

from iclbench.cli.sweep_run import run
from iclbench.cli.sweep_summary import print_dry_run
from iclbench.cli.terminal import out, print_json, say, table
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.formats import plural
from iclbench.store.cells import Store
from iclbench.store.runs import writing
from iclbench.sweep import engine, engines
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.engine import Bundling
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.executor import Submitting
from iclbench.sweep.grids import load_grid
from iclbench.sweep.language_grids import is_language_grid
from iclbench.sweep.plan import Plan


def cluster(
    name: str, grids: Sequence[str], jobs: int | None, workers: int | None, detach: bool, status: bool
) -> Cluster | None:
    """The engine of this name with what tables say of its jobs; None: cells are worked on here.

    Raises:
        UsageError: it cannot be had, or is asked for what it has not.
    """
    if name == "local":
        if jobs or detach or status:
            raise UsageError("--jobs, --detach and --status are of an engine with jobs: name it with --engine")
        return None
    engines.check(name)
    if status and detach:
        raise UsageError("--status shows and --detach submits: write one of them")
    if workers:
        raise UsageError(f"--workers is of this machine; engine '{name}' has --jobs")
    settings = engines.settings(name, _of_grids(grids), {"jobs": jobs} if jobs else {})
    return Cluster(name, settings, detach, status)


def _of_grids(grids: Sequence[str]) -> dict[str, Any]:
    """What the tables `[engine]` of grids say of jobs that work on the cells of all of them."""
    together: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for grid in grids:
        own = None if is_language_grid(grid) else load_grid(grid)[1].engine
        for key, value in own.model_dump(exclude_unset=True).items() if own else ():
            if together.setdefault(key, value) != value:
                raise UsageError(
                    f"the tables [engine] of grids '{said_by[key]}' and '{grid}' have {key} = {together[key]} and "
                    f"{value}; sweep them one after the other"
                )
            said_by.setdefault(key, grid)
    return together


@dataclass(frozen=True)
class Cluster:
    """An engine with jobs.

    Attributes:
        name: of the engine.
        settings: of its jobs.
        detach: submit and leave.
        status: show what is there, and do nothing.
    """

    name: str
    settings: EngineSettings
    detach: bool = False
    status: bool = False

    def device(self, typed: str) -> str:
        """What cells compute on there; this machine may be another."""
        return "cuda" if typed.startswith("cuda") or (typed == "auto" and self.settings.gpus) else "cpu"

    def sweep(
        self, plan: Plan, store: Store, context: Context, dry_run: bool, json: bool, added: Sequence[str]
    ) -> None:
        """Do what is to do, or show it."""
        own = self.settings
        if context.device == "cuda" and not own.gpus:
            own = own.model_copy(update={"gpus": 1})
        data = context.data_dir and context.data_dir.absolute()
        context = replace(context, results=context.results.absolute(), data_dir=data, threads=own.cpus)
        if dry_run:
            print_dry_run(plan, store, context.device, context.data_dir, None, json, added, own)
            return
        estimates = Estimates(store, context.device)
        bundling = Bundling(own.worth, estimates.seconds)
        start = partial(self._executor, context, own, estimates)
        if self.status and not context.results.is_dir():
            raise UsageError(f"no results folder {context.results}: nothing was submitted there")
        with writing(context.results):
            context.results.mkdir(parents=True, exist_ok=True)
        if self.status:
            executor = start()
            if not isinstance(executor, Submitting):
                executor.shutdown()
                raise UsageError(f"engine '{self.name}' has no queue that outlives the command: leave --status out")
            _print_status(executor, plan, json)
        elif self.detach:
            self._submit(start(), plan, store, context, bundling)
        else:
            run(plan, store, start, context, json, own.jobs, bundling)

    def _executor(self, context: Context, own: EngineSettings, estimates: Estimates) -> Any:
        def seconds(bundle: Bundle) -> float | None:
            known = [estimates.seconds(cell) for cell in bundle.cells]
            return None if None in known else sum(each for each in known if each is not None)

        if self.name == "slurm":
            from iclbench.sweep.slurm import SlurmExecutor

            return SlurmExecutor(context.results, own, seconds, say)
        if self.name == "ray":
            from iclbench.sweep.ray import RayExecutor

            return RayExecutor(context.results, own, seconds, say)
        return engines.plugin(self.name)(context.results, own, seconds, say)

    def _submit(self, executor: Submitting, plan: Plan, store: Store, context: Context, bundling: Bundling) -> None:
        if not isinstance(executor, Submitting):
            executor.shutdown()
            raise UsageError(f"engine '{self.name}' has no jobs that outlive the command: leave --detach out")
        try:
            found = engine.submit(plan, store, executor, context, bundling)
        finally:
            executor.shutdown()
        left = len(plan.todo) - found.cells - found.left
        later = f"; {plural(left, 'cell')} more in the queue already or waiting for others" if left else ""
        submitted = f"{plural(found.jobs, 'job')} submitted with {plural(found.cells, 'cell')}"
        say(f"{submitted}{later}; the same command goes on")
        if found.refused:
            refused = f"{plural(found.refused, 'job')} with {plural(found.left, 'cell')} refused"
            say(f"{refused}: {found.why}; the same command tries them again")
            raise typer.Exit(1)


def _print_status(executor: Submitting, plan: Plan, json: bool) -> None:
    """Every job, and what of the grid is to do."""
    try:
        known, rows = executor.queue(), []
        for name, state in known.items():
            done, cells = executor.progress(name)
            rows.append({"job": executor.job(name), "state": state.name, "reason": state.reason, "node": state.node}
                        | {"cells": cells, "done": done})  # fmt: skip
    finally:
        executor.shutdown()
    left = len(plan.todo)
    if json:
        print_json({"jobs": rows, "to_do": left})
        return
    if rows:
        columns = ["job", "state", "reason", "node", "cells", "done"]
        table("", columns, [[str(row[key]) for key in columns] for row in rows], numeric=(4, 5))
    counts = Counter(row["state"] for row in rows)
    what = ", ".join(f"{number} {state.lower()}" for state, number in counts.items())
    out.print(f"{plural(len(rows), 'job')}{f' ({what})' if what else ''}; {plural(left, 'cell')} of the grid to do")
