"""`iclbench demo`: train, evaluate and report a small grid in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from iclbench.cli.options import set_up_torch

Subject = Annotated[
    Literal["functions", "tables"],
    typer.Argument(
        help="functions: GPT-2 and Mamba on linear functions. tables: two models trained on synthetic tables and "
        "evaluated on real ones (up to 15 minutes on two cores)."
    ),
]
DemoResults = Annotated[
    Path, typer.Option("--results", envvar="ICLBENCH_RESULTS", help="Results folder.", show_default="./results/demo")
]

# The grid of the demo for each subject.
GRIDS = {"functions": "demo", "tables": "demo-tables"}
# The task with real tables on which models are evaluated, for each training task.
REAL_TABLES = {"tabular-prior-classes": "real-tables-classes", "tabular-prior": "real-tables"}


def command(subject: Subject = "functions", results: DemoResults = Path("results/demo")) -> None:
    """Train small backbones, evaluate them with baselines, and write the report."""
    from iclbench import tables
    from iclbench.cli.eval_runs import TABLE_BASELINES, evaluate_run
    from iclbench.cli.summary import print_summary
    from iclbench.cli.sweep_run import gpus_of_workers, run_locally
    from iclbench.cli.terminal import out, say
    from iclbench.config.resolution import resolve_task
    from iclbench.core.context import Context
    from iclbench.core.formats import plural
    from iclbench.core.signals import sigterm_like_ctrl_c
    from iclbench.report import build
    from iclbench.store.cells import CellStore
    from iclbench.store.runs import find
    from iclbench.sweep.cells import grid_cells
    from iclbench.sweep.plan import make_plan

    with sigterm_like_ctrl_c():
        set_up_torch("cpu", 1)
        store, context = CellStore(results), Context(results)
        demo_plan = make_plan(grid_cells([GRIDS[subject]], results=results), store)
        runs = sorted({cell.run for cell in demo_plan.cells if cell.kind == "train"})
        kinds = {cell.kind for cell in demo_plan.cells}
        work = "training, evaluating and probing" if "probe" in kinds else "training"
        say(f"{work} {', '.join(runs)}: {plural(len(demo_plan.todo), 'cell')}")
        run_locally(demo_plan, store, gpus_of_workers(), context)
        prompt_sets: list[str] = []
        if subject == "tables":
            for run in (find(results, name) for name in runs):
                real_tables = resolve_task(REAL_TABLES[run.config.task.name], run.config.preset)[0]
                # Evaluate with as many context rows as in training.
                replacement = (real_tables.model_copy(update={"points": run.config.task.points}), None)
                baselines = list(TABLE_BASELINES["class" if real_tables.head == "categorical" else "number"])
                evaluate_run(context, run, [], None, 0, replacement, baselines, prompt_sets)
        say("writing the report")
        page = build(results, results / "report").page
    if subject == "functions":
        values = tables.read_all("values", results)
        run_rows = values[values["run"].isin(runs) & (values["shift"] == "none") & (values["evaluator"] == "next")]
        prompt_sets = list(run_rows["prompt_set"].unique())
    print_summary(results, prompt_sets)
    out.print(f"report: {page.resolve()}")
