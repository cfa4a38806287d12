"""`iclbench sweep GRID`: compute all cells of a grid. Finished cells are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, PerGpu, Results, Trust, Workers
from iclbench.core.errors import UsageError


def command(
    grid: Annotated[
        list[str],
        typer.Argument(
            autocompletion=completion.grids, help="Grids: names (iclbench list grids) or paths to .toml files."
        ),
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the numbers of finished and remaining cells, with the estimated time and disk space, and exit.",
        ),
    ] = False,
    workers: Workers = None,
    per_gpu: PerGpu = 1,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            autocompletion=completion.engines,
            help="Engine that computes cells: local (processes on this machine), slurm, ray, or one from a plug-in.",
            metavar="NAME",
        ),
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            help="Maximum number of queued and running jobs.",
            show_default="from the engine's table, or 100",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Submit the jobs that can start, and exit. The same command continues the sweep."
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print the engine's jobs for this results folder, and exit.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            autocompletion=completion.presets,
            help="Compute only this preset of the grids.",
            show_default="all",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            autocompletion=completion.several_tasks,
            help="Compute only these tasks of the grids, separated by commas.",
            show_default="all",
        ),
    ] = None,
    contestants: Annotated[
        str | None,
        typer.Option(
            "--contestants",
            autocompletion=completion.several_contestants,
            help="Compute only cells of these backbones and baselines, separated by commas.",
            show_default="all",
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            autocompletion=completion.backbones,
            help="Add a backbone on all tasks of the grids: a name or package.module:Class. May be repeated.",
            metavar="BACKBONE",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", help="Compute only cells of these kinds, separated by commas: train, evaluate, probe, cost."
        ),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option("--pack", help="Pack finished cells into a few files in this subfolder of --results, and exit."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --pack, remove packed cells that the grid does not contain.")
    ] = False,
    verify: Annotated[
        int | None,
        typer.Option(
            "--verify",
            min=1,
            help="Recompute this number of random evaluations, including the training, compare the values, and exit.",
        ),
    ] = None,
    verify_seed: Annotated[
        int, typer.Option("--verify-seed", min=0, help="Seed for the random choice of --verify.")
    ] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train, evaluate, probe and measure all runs of grids. Repeat the command to resume an interrupted sweep."""
    from iclbench.cli import sweep_jobs, sweep_results
    from iclbench.cli.sweep_cells import parsed_names, refuse_language_grids, selected_cells
    from iclbench.cli.sweep_run import devices, gpus_of_workers, run_locally
    from iclbench.cli.sweep_summary import print_dry_run
    from iclbench.cli.terminal import say
    from iclbench.core.context import Context
    from iclbench.core.signals import sigterm_like_ctrl_c
    from iclbench.store.cells import CellStore
    from iclbench.sweep import plan as plans
    from iclbench.sweep.cells import KINDS
    from iclbench.sweep.outlook import check_data
    from iclbench.sweep.pack import missing_results_note

    has_sweep_options = dry_run or only or contestants or workers or per_gpu != 1
    if (pack is not None or verify is not None) and (
        has_sweep_options or engine != "local" or jobs or detach or status
    ):
        raise UsageError(
            "--pack and --verify cannot be used with --dry-run, --only, --contestants, --workers, --per-gpu, --engine, "
            "--jobs, --detach or --status",
            code="conflict",
        )
    if replace and pack is None:
        raise UsageError("--replace needs --pack: write --pack FOLDER --replace", code="missing-value")
    if pack is not None and verify is not None:
        raise UsageError("--pack and --verify cannot be used together: pack first, then verify", code="conflict")
    if pack is not None or verify is not None:
        refuse_language_grids(grid)
    if dry_run and (detach or status):
        raise UsageError("--dry-run cannot be used with --detach or --status", code="conflict")
    cluster = sweep_jobs.cluster(engine, grid, jobs, workers, detach, status)
    if cluster is not None and per_gpu != 1:
        raise UsageError(f"--per-gpu needs engine 'local'; each job of engine '{engine}' has one GPU", code="conflict")
    kinds = parsed_names("kind of cell", only, KINDS)
    with sigterm_like_ctrl_c():
        device_type, gpus = devices(device) if cluster is None else (cluster.device(device), [])
        context, store = Context(results, data_dir, device_type), CellStore(results)
        cells = selected_cells(grid, preset, tasks, add or [], results)
        if pack is not None:
            sweep_results.print_packed(grid, cells, store, pack, json, replace)
            return
        if (note := missing_results_note(grid, cells, results)) is not None:
            say(note)
        if verify is not None:
            if not sweep_results.print_verified(cells, store, verify, verify_seed, context, json):
                raise typer.Exit(1)
            return
        all_contestants = {cell.contestant for cell in cells if not cell.is_summary}
        selected_contestants = (
            parsed_names("contestant", contestants, all_contestants, "(of these grids)") if contestants else None
        )
        plan = plans.select_cells(plans.make_plan(cells, store), store, kinds, selected_contestants)
        check_data(plan, context)
        worker_gpus = gpus_of_workers(gpus, per_gpu, workers)
        if cluster is not None:
            cluster.sweep(plan, store, context, dry_run, json, add or [])
        elif dry_run:
            print_dry_run(plan, store, device_type, data_dir, len(worker_gpus), json, added_backbones=add or [])
        else:
            run_locally(plan, store, worker_gpus, context, json)
