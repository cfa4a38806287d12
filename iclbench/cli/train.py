"""`iclbench train TASK BACKBONE`: trains a run; the same command again continues it."""

from __future__ import annotations

from pathlib import Path

from iclbench.api.train import train_run
from iclbench.cli.options import set_up_torch
from iclbench.cli.terminal import out, say, step_bar
from iclbench.config.resolution import resolve_tables, typed_tables
from iclbench.config.runs import Run, check_name, keeping_rate, run_name
from iclbench.config.sizes import check_size
from iclbench.config.trust import typed
from iclbench.core.context import Context
from iclbench.training.processes import Processes, check_count, joined, own_device, started
from iclbench.training.trackers import check_trackers


def train(
    task: str,
    backbone: str,
    preset: str,
    seed: int,
    override: list[str] | None,
    config: Path | None,
    name: str | None,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    processes: int,
    log: list[str],
) -> None:
    """Train a backbone on a task. The same command again continues the run where it stopped."""
    typed(backbone)
    check_trackers(log)
    chosen = set_up_torch(device, threads)
    tables = typed_tables(override or [], config)
    frozen = resolve_tables(task, backbone, preset, seed, tables, data_dir=data_dir, results=results)
    known = Run(results / "runs" / (check_name(name) if name else run_name(frozen)))
    if not known.begun:  # who goes on with a run knows how big it is
        check_size(task, backbone, preset, tables.get("backbone", {}))
    was_finished, context = known.finished, Context(results, data_dir, own_device(chosen), threads)
    config_of_run = keeping_rate(results, frozen, name, tables.get("train", {}))
    words = ["train", task, backbone, "--preset", preset, "--seed", str(seed), "--name", known.name]
    words += ["--results", str(results), "--device", device, "--threads", str(threads)]
    words += [word for each in override or [] for word in ("-o", each)]
    words += ["--config", str(config)] if config else []
    words += ["--data-dir", str(data_dir)] if data_dir else []
    if processes > 1 and not was_finished:  # before they are started, and before there is a run
        check_count(processes, chosen)
        Processes(count=processes).check(frozen.build(frozen.task.build(data_dir)), frozen.train.batch)
    with started(processes, words), joined(chosen) as own:
        run = train_run(config_of_run, name, context, step_bar, log, own)
    if was_finished:
        say(f"run '{run.name}' is finished")
    out.print(run.name)
