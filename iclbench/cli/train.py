"""`iclbench train TASK BACKBONE`: train a run, or continue it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, MaxBytes, Results, Threads, Trackers, Trust, set_up_torch


def command(
    task: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.tasks, help="Task: a name (iclbench list tasks) or a path to a .toml file."
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
        str,
        typer.Option(
            "--preset", "-p", autocompletion=completion.presets, help="Size of the run: smoke, grid, small or paper."
        ),
    ] = "small",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of weights and training data.")] = 0,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--override", help="Setting: task.KEY=VALUE, backbone.KEY=VALUE or train.KEY=VALUE. May be repeated."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file with settings in the tables [task], [backbone] and [train]."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run (default: TASK-BACKBONE-PRESET-sSEED).")
    ] = None,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", min=1, help="Number of processes that share each batch, with one GPU each or on the CPU."
        ),
    ] = 1,
    log: Trackers = [],  # noqa: B006  # Typer copies it
) -> None:
    """Train a backbone on a task. The same command continues the run after an interruption."""
    from iclbench.api.train import train_run
    from iclbench.cli.terminal import out, say, step_bar
    from iclbench.config.resolution import resolve_tables, tables_origin, user_tables
    from iclbench.config.sizes import check_size
    from iclbench.core.context import Context
    from iclbench.core.trust import trust_typed
    from iclbench.store.rates import read_rates
    from iclbench.store.runs import Run, check_name, run_name, with_rates_of_started_run
    from iclbench.training.processes import Processes, check_count, device_of_process, join_processes, start_processes
    from iclbench.training.trackers import check_trackers

    trust_typed(backbone)
    check_trackers(log)
    torch_device = set_up_torch(device, threads)
    tables = user_tables(override or [], config)
    origin = tables_origin(override or [], config)
    resolved_config = resolve_tables(
        task, backbone, preset, seed, tables, origin, data_dir=data_dir, read_rates=partial(read_rates, results)
    )
    target_run = Run(results / "runs" / (run_name(resolved_config) if name is None else check_name(name)))
    if not target_run.is_started:  # the size of a started run is fixed
        check_size(task, backbone, preset, tables.get("backbone", {}))
    was_finished, context = target_run.is_finished, Context(results, data_dir, device_of_process(torch_device), threads)
    run_config = with_rates_of_started_run(results, resolved_config, name, tables.get("train", {}))
    command_words = ["train", task, backbone, "--preset", preset, "--seed", str(seed), "--name", target_run.name]
    command_words += ["--results", str(results), "--device", device, "--threads", str(threads)]
    command_words += [word for assignment in override or [] for word in ("-o", assignment)]
    command_words += ["--config", str(config)] if config else []
    command_words += ["--data-dir", str(data_dir)] if data_dir else []
    if processes > 1 and not was_finished:  # check before the processes start and the run folder is created
        check_count(processes, torch_device)
        Processes(count=processes).check(
            resolved_config.build(resolved_config.task.build(data_dir)), resolved_config.train.batch
        )
    with start_processes(processes, command_words), join_processes(torch_device) as group:
        run = train_run(run_config, name, context, step_bar, log, group)
    if was_finished:
        say(f"run '{run.name}' is finished")
    out.print(run.name)
