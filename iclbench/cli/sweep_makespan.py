"""What an engine's dry run says of its jobs: how many there will be, what each asks for, and how long all take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from iclbench.cli.sweep_view import duration
from iclbench.cli.terminal import out, table
from iclbench.core.formats import plural
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engine import Bundling
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Estimates
from iclbench.sweep.makespan import simulate
from iclbench.sweep.plan import Plan

# Seconds until a job begins to work, where nothing is in its way: Python, torch and numba are loaded.
_START = 10.0
# The share of jobs that die half way, in what the dry run says of such a cluster.
_DYING = 0.05
# Draws of which ones, whose mean is said.
_DRAWS = 8


def jobs_of(plan: Plan, settings: EngineSettings, recorded: Estimates, measured: Estimates) -> dict[str, Any]:
    """What will be submitted, and how long it takes on more or fewer jobs.

    Args:
        plan: what is to do.
        settings: of the jobs.
        recorded: by which cells go together when they are submitted.
        measured: what they take, as far as that is known now.
    """

    def looked_up(seconds: Callable[[GridCell], float | None]) -> Bundling:
        """Going through the plan many times, each cell is asked about once: that looks at files."""
        lengths = {cell.hash: seconds(cell) for cell in plan.todo}
        return Bundling(settings.worth, lambda cell: lengths[cell.hash])

    bundling, now = looked_up(recorded.seconds), looked_up(measured.seconds)
    sizes = simulate(plan, settings.jobs, bundling).jobs
    spans = []
    for jobs in sorted({1, 8, 32, 128, 512, settings.jobs}):
        sound = simulate(plan, jobs, bundling, _START, takes=now.expected)
        dying = [simulate(plan, jobs, bundling, _START, _DYING, seed, now.expected).seconds for seed in range(_DRAWS)]
        spans.append(
            {"at_once": jobs, "seconds": sound.seconds, "efficiency": sound.efficiency}
            | {"seconds_with_deaths": fmean(dying)}
        )
    return {
        "jobs": len(sizes),
        "cells_per_job": [min(sizes), max(sizes)] if sizes else None,
        "cpus": settings.cpus,
        "gpus": settings.gpus,
        "memory": settings.memory,
        "minutes": settings.minutes,
        "at_once": settings.jobs,
        "cells_of_unknown_length": sum(now.of(cell) is None for cell in plan.todo if cell.reason is None),
        "makespan": spans,
    }


def print_jobs(jobs: Mapping[str, Any]) -> None:
    """Print what `jobs_of` returns."""
    if jobs["cells_per_job"] is None:
        return
    fewest, most = jobs["cells_per_job"]
    gpus = f", {plural(jobs['gpus'], 'GPU')}" if jobs["gpus"] else ""
    minutes = jobs["minutes"]
    limit = "60 minutes or more, by what is known of its cells" if minutes is None else f"{minutes} minutes"
    out.print(
        f"{plural(jobs['jobs'], 'job')} of {fewest} to {most} cells; each: {plural(jobs['cpus'], 'CPU')}{gpus}, "
        f"{jobs['memory']}, {limit}; at most {jobs['at_once']} at once"
    )
    rows = [
        [
            str(each["at_once"]),
            duration(each["seconds"]),
            f"{each['efficiency']:.0%}",
            duration(each["seconds_with_deaths"]),
        ]
        for each in jobs["makespan"]
    ]
    table("", ["jobs at once", "time", "efficiency", f"time if {_DYING:.0%} die"], rows, numeric=range(4))
    unknown = jobs["cells_of_unknown_length"]
    guess = f"; {plural(unknown, 'cell')} of unknown length taken for a minute each" if unknown else ""
    out.print(f"time without waiting in the queue, {_START:.0f} s to start a job{guess}")
