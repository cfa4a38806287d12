"""`iclbench sweep GRID --engine slurm`: compute cells in jobs on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import typer

from iclbench.cli.sweep_run import run
from iclbench.cli.sweep_summary import print_dry_run
from iclbench.cli.terminal import out, print_json, print_table, say
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.formats import plural
from iclbench.store.cells import CellStore
from iclbench.store.runs import write_errors
from iclbench.sweep import engine, engines
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.engine import Bundling
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.executor import SubmittingExecutor
from iclbench.sweep.grids import load_grid
from iclbench.sweep.language_grids import is_language_grid
from iclbench.sweep.plan import Plan


def cluster(
    name: str, grids: Sequence[str], jobs: int | None, workers: int | None, detach: bool, status: bool
) -> Cluster | None:
    """Return the engine with this name and the settings of its jobs; None for the local engine.

    Raises:
        UsageError: the engine is not available, or does not support an option.
    """
    if name == "local":
        if jobs or detach or status:
            raise UsageError(
                "--jobs, --detach and --status need an engine with jobs: use --engine", code="missing-value"
            )
        return None
    engines.check(name)
    if status and detach:
        raise UsageError("--status and --detach cannot be used together", code="conflict")
    if workers:
        raise UsageError(f"--workers needs engine 'local'; for engine '{name}' use --jobs", code="conflict")
    settings = engines.settings(name, _grid_settings(grids), {"jobs": jobs} if jobs else {})
    return Cluster(name, settings, detach, status)


def _grid_settings(grids: Sequence[str]) -> dict[str, Any]:
    """Merge the tables `[engine]` of all grids. Raise `UsageError` if they contradict each other."""
    merged_settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for grid in grids:
        engine_table = None if is_language_grid(grid) else load_grid(grid)[1].engine
        for key, value in engine_table.model_dump(exclude_unset=True).items() if engine_table else ():
            if merged_settings.setdefault(key, value) != value:
                raise UsageError(
                    f"the tables [engine] of grids '{sources[key]}' and '{grid}' have {key} = {merged_settings[key]} "
                    f"and {value}; sweep them one after the other",
                    code="conflict",
                )
            sources.setdefault(key, grid)
    return merged_settings


@dataclass(frozen=True)
class Cluster:
    """An engine that computes cells in jobs.

    Attributes:
        name: name of the engine.
        settings: settings of its jobs.
        detach: whether to submit jobs and exit.
        status: whether to print the jobs and exit.
    """

    name: str
    settings: EngineSettings
    detach: bool = False
    status: bool = False

    def device(self, option: str) -> str:
        """Return the device type for cells on the cluster, which may differ from the device of this machine."""
        return "cuda" if option.startswith("cuda") or (option == "auto" and self.settings.gpus) else "cpu"

    def sweep(
        self, plan: Plan, store: CellStore, context: Context, dry_run: bool, json: bool, added_backbones: Sequence[str]
    ) -> None:
        """Compute the cells to do, submit them (`detach`), or print the jobs (`status`) or the plan (`dry_run`)."""
        settings = self.settings
        if context.device == "cuda" and not settings.gpus:
            settings = settings.model_copy(update={"gpus": 1})
        data = context.data_dir and context.data_dir.absolute()
        context = replace(context, results=context.results.absolute(), data_dir=data, threads=settings.cpus)
        if dry_run:
            print_dry_run(plan, store, context.device, context.data_dir, None, json, added_backbones, settings)
            return
        estimates = Estimates(store, context.device)
        bundling = Bundling(settings.worth, estimates.seconds)
        start = partial(self._executor, context, settings, estimates)
        if self.status and not context.results.is_dir():
            raise UsageError(
                f"the results folder {context.results} does not exist and therefore has no jobs", code="missing-file"
            )
        with write_errors(context.results):
            context.results.mkdir(parents=True, exist_ok=True)
        if self.status:
            executor = start()
            if not isinstance(executor, SubmittingExecutor):
                executor.shutdown()
                raise UsageError(
                    f"engine '{self.name}' has no queue that outlives the command: remove --status",
                    code="not-supported",
                )
            _print_status(executor, plan, json)
        elif self.detach:
            self._submit(start(), plan, store, context, bundling)
        else:
            run(plan, store, start, context, json, settings.jobs, bundling)

    def _executor(self, context: Context, settings: EngineSettings, estimates: Estimates) -> Any:
        def seconds(bundle: Bundle) -> float | None:
            durations = [estimates.seconds(cell) for cell in bundle.cells]
            return None if None in durations else sum(duration for duration in durations if duration is not None)

        if self.name == "slurm":
            from iclbench.sweep.slurm import SlurmExecutor

            return SlurmExecutor(context.results, settings, seconds, say)
        if self.name == "ray":
            from iclbench.sweep.ray import RayExecutor

            return RayExecutor(context.results, settings, seconds, say)
        return engines.plugin_class(self.name)(context.results, settings, seconds, say)

    def _submit(
        self, executor: SubmittingExecutor, plan: Plan, store: CellStore, context: Context, bundling: Bundling
    ) -> None:
        if not isinstance(executor, SubmittingExecutor):
            executor.shutdown()
            raise UsageError(
                f"engine '{self.name}' has no jobs that outlive the command: remove --detach", code="not-supported"
            )
        try:
            submission = engine.submit(plan, store, executor, context, bundling)
        finally:
            executor.shutdown()
        other_cells = len(plan.todo) - submission.cells - submission.refused_cells
        others_text = (
            f"; {plural(other_cells, 'more cell')} already in the queue or waiting for others" if other_cells else ""
        )
        jobs = f"{plural(submission.jobs, 'job')} submitted with {plural(submission.cells, 'cell')}"
        say(f"{jobs}{others_text}; the same command continues the sweep")
        if submission.refused_jobs:
            jobs = f"{plural(submission.refused_jobs, 'job')} with {plural(submission.refused_cells, 'cell')}"
            say(f"{jobs} refused: {submission.reason}; the same command tries again")
            raise typer.Exit(1)


def _print_status(executor: SubmittingExecutor, plan: Plan, json: bool) -> None:
    """Print all jobs, and the number of cells to do."""
    try:
        rows = []
        for name, state in executor.queue().items():
            done, cells = executor.progress(name)
            rows.append({"job": executor.job(name), "state": state.name, "reason": state.reason, "node": state.node}
                        | {"cells": cells, "done": done})  # fmt: skip
    finally:
        executor.shutdown()
    todo = len(plan.todo)
    if json:
        print_json({"jobs": rows, "to_do": todo})
        return
    if rows:
        columns = ["job", "state", "reason", "node", "cells", "done"]
        print_table("", columns, [[str(row[key]) for key in columns] for row in rows], numeric=(4, 5))
    counts = Counter(row["state"] for row in rows)
    summary = ", ".join(f"{number} {state.lower()}" for state, number in counts.items())
    out.print(
        f"{plural(len(rows), 'job')}{f' ({summary})' if summary else ''}; {plural(todo, 'cell')} of the grid to do"
    )
