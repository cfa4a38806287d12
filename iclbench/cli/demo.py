"""`iclbench demo`: train, evaluate and report a small grid in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli.options import set_up_torch

DemoResults = Annotated[
    Path, typer.Option("--results", envvar="ICLBENCH_RESULTS", help="Results folder.", show_default="./results/demo")
]

# The grid of the demo.
GRID = "demo"


def command(results: DemoResults = Path("results/demo")) -> None:
    """Train small backbones on two tasks, evaluate them with baselines, probe their layers and write the report."""
    from iclbench import tables
    from iclbench.cli.summary import print_summary
    from iclbench.cli.sweep_run import gpus_of_workers, run_locally
    from iclbench.cli.terminal import out, say
    from iclbench.core.context import Context
    from iclbench.core.formats import plural
    from iclbench.core.signals import sigterm_like_ctrl_c
    from iclbench.report import build
    from iclbench.store.cells import CellStore
    from iclbench.sweep.cells import grid_cells
    from iclbench.sweep.plan import make_plan

    with sigterm_like_ctrl_c():
        set_up_torch("cpu", 1)
        store = CellStore(results)
        demo_plan = make_plan(grid_cells([GRID], results=results), store)
        runs = sorted({cell.run for cell in demo_plan.cells if cell.kind == "train"})
        say(f"training, evaluating and probing {', '.join(runs)}: {plural(len(demo_plan.todo), 'cell')}")
        run_locally(demo_plan, store, gpus_of_workers(), Context(results))
        say("writing the report")
        page = build(results, results / "report").page
    values = tables.read_all("values", results)
    in_distribution = values[values["run"].isin(runs) & (values["shift"] == "none") & (values["evaluator"] == "next")]
    print_summary(results, list(in_distribution["prompt_set"].unique()))
    out.print(f"report: {page.resolve()}")
