"""Estimate the jobs for an engine's dry run: their number, their resources, and the total time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from iclbench.cli.sweep_view import duration_text
from iclbench.cli.terminal import out, print_table
from iclbench.core.formats import plural
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engine import Bundling
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.makespan import simulate
from iclbench.sweep.plan import Plan

# Seconds to start a job: Python, torch and numba are loaded.
_START_SECONDS = 10.0
# Share of jobs that fail halfway, for the estimate on an unreliable cluster.
_FAILURE_SHARE = 0.05
# Number of simulations with random failures, over which the time is averaged.
_SIMULATIONS = 8


def jobs_of(
    plan: Plan, settings: EngineSettings, recorded_estimates: Estimates, measured_estimates: Estimates
) -> dict[str, Any]:
    """Return the jobs of a plan, and the total time for several numbers of parallel jobs.

    Args:
        plan: the plan.
        settings: settings of the jobs.
        recorded_estimates: estimates from recorded speeds, which are also used to group cells into jobs at submission.
        measured_estimates: estimates that also use speeds measured on this machine, for the time of cells.
    """

    def cached_bundling(seconds: Callable[[GridCell], float | None]) -> Bundling:
        """Return a bundling with cached estimates. An estimate reads files, and simulations need it many times."""
        durations = {cell.hash: seconds(cell) for cell in plan.todo}
        return Bundling(settings.worth, lambda cell: durations[cell.hash])

    recorded_bundling, measured_bundling = (
        cached_bundling(recorded_estimates.seconds),
        cached_bundling(measured_estimates.seconds),
    )
    cell_counts = simulate(plan, settings.jobs, recorded_bundling).jobs
    makespans = []
    for jobs in sorted({1, 8, 32, 128, 512, settings.jobs}):
        reliable = simulate(
            plan, jobs, recorded_bundling, _START_SECONDS, cell_seconds=measured_bundling.expected_seconds
        )
        unreliable = [
            simulate(
                plan, jobs, recorded_bundling, _START_SECONDS, _FAILURE_SHARE, seed, measured_bundling.expected_seconds
            ).seconds
            for seed in range(_SIMULATIONS)
        ]
        makespans.append(
            {"at_once": jobs, "seconds": reliable.seconds, "efficiency": reliable.efficiency}
            | {"seconds_with_deaths": fmean(unreliable)}
        )
    return {
        "jobs": len(cell_counts),
        "cells_per_job": [min(cell_counts), max(cell_counts)] if cell_counts else None,
        "cpus": settings.cpus,
        "gpus": settings.gpus,
        "memory": settings.memory,
        "minutes": settings.minutes,
        "at_once": settings.jobs,
        "devices": measured_estimates.devices,
        "cells_of_unknown_length": sum(
            measured_bundling.estimate(cell) is None for cell in plan.todo if cell.reason is None
        ),
        "makespan": makespans,
    }


def print_jobs(jobs: Mapping[str, Any]) -> None:
    """Print the result of `jobs_of`."""
    if jobs["cells_per_job"] is None:
        return
    fewest, most = jobs["cells_per_job"]
    gpus = f", {plural(jobs['gpus'], 'GPU')}" if jobs["gpus"] else ""
    minutes = jobs["minutes"]
    limit = "at least 60 minutes, depending on its cells" if minutes is None else f"{minutes} minutes"
    out.print(
        f"{plural(jobs['jobs'], 'job')} of {fewest} to {most} cells; each: {plural(jobs['cpus'], 'CPU')}{gpus}, "
        f"{jobs['memory']}, {limit}; at most {jobs['at_once']} at once"
    )
    rows = [
        [
            str(makespan["at_once"]),
            duration_text(makespan["seconds"]),
            f"{makespan['efficiency']:.0%}",
            duration_text(makespan["seconds_with_deaths"]),
        ]
        for makespan in jobs["makespan"]
    ]
    print_table(
        "", ["jobs at once", "time", "efficiency", f"time if {_FAILURE_SHARE:.0%} fail"], rows, numeric=range(4)
    )
    unknown_count = jobs["cells_of_unknown_length"]
    assumption = (
        f"; {plural(unknown_count, 'cell')} of unknown duration counted as a minute each" if unknown_count else ""
    )
    speed = f"; speed measured on {', '.join(jobs['devices'])}" if jobs["devices"] else ""
    out.print(f"time without waiting in the queue, {_START_SECONDS:.0f} s to start a job{assumption}{speed}")
