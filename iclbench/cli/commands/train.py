"""`iclbench train TASK BACKBONE`: trains a run; the same command again continues it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, MaxBytes, Results, Threads, Trackers, Trust


def train(
    task: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.tasks, help="Task card: a name (iclbench list tasks) or a path to a .toml file."
        ),
    ],
    backbone: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.backbones,
            help="Backbone: a name (iclbench list backbones) or package.module:Class.",
        ),
    ],
    preset: Annotated[
        str, typer.Option("--preset", "-p", autocompletion=completion.presets, help="smoke, grid, small or paper.")
    ] = "small",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and training data.")] = 0,
    override: Annotated[
        list[str] | None, typer.Option("-o", "--override", help="key=value below task., backbone. or train.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with tables [task] [backbone] [train].")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; default TASK-BACKBONE-PRESET-sSEED.")
    ] = None,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Processes that share every batch, on one GPU each or on the CPU.")
    ] = 1,
    log: Trackers = [],  # noqa: B006  # Typer copies it
) -> None:
    """Train a backbone on a task. The same command again continues the run where it stopped."""
