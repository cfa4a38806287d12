"""`iclbench sweep GRID`: all cells of a grid, those that are finished skipped before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Trust


def sweep(
    grid: Annotated[
        list[str],
        typer.Argument(
            autocompletion=completion.grids, help="Grids: names (iclbench list grids) or paths to .toml files."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is done and what is to do, with time and disk; do nothing.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-j", min=1, help="Processes, of one thread each.", show_default="one per core"),
    ] = None,
    per_gpu: Annotated[int, typer.Option("--per-gpu", min=1, help="Processes that share one GPU.")] = 1,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            autocompletion=completion.engines,
            help="What runs the cells: local (processes here), slurm, ray, or a plug-in's.",
            metavar="NAME",
        ),
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, help="Jobs of the engine, in the queue or running.", show_default="of its table, 100"
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Submit what can begin, and leave; the same command collects and goes on."),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Sweep nothing; show the engine's jobs of this results folder.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            autocompletion=completion.presets,
            help="Only this preset of the grids.",
            show_default="all",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            autocompletion=completion.several_tasks,
            help="Only these tasks of the grids, by commas.",
            show_default="all",
        ),
    ] = None,
    contestants: Annotated[
        str | None,
        typer.Option(
            "--contestants",
            autocompletion=completion.several_contestants,
            help="Only cells of these backbones and baselines, by commas.",
            show_default="all",
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            autocompletion=completion.backbones,
            help="A further backbone, registered or package.module:Class, that meets every task of the grids.",
            metavar="BACKBONE",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Only cells of these kinds: train, evaluate, probe, cost, by commas.")
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option("--pack", help="Sweep nothing; pack what is there into a few files in this folder of --results."),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option(
            "--replace",
            help="With --pack, why finished cells in it that the grid no longer has leave: what takes their place is "
            "listed there as awaiting recomputation.",
            metavar="REASON",
        ),
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option("--verify", min=1, help="Sweep nothing; compute so many random evaluations again and compare."),
    ] = None,
    verify_seed: Annotated[int, typer.Option("--verify-seed", min=0, help="Which ones --verify takes.")] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train, evaluate, probe and measure all that a grid asks for. The same command goes on where it stopped."""
