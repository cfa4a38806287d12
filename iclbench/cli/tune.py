"""`iclbench tune CONTESTANT...`: choose learning rates on validation episodes."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, PerGpu, Results, Trust, Workers


def command(
    contestant: Annotated[
        list[str],
        typer.Argument(
            autocompletion=completion.backbones,
            help="Backbones: names (iclbench list backbones) or package.module:Class.",
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            autocompletion=completion.several_tasks,
            help="Tasks, separated by commas: names or paths to .toml files.",
            show_default="all with the preset and available data",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            "--preset", "-p", autocompletion=completion.presets, help="Size of the runs: smoke, grid, small or paper."
        ),
    ] = "grid",
    rates: Annotated[
        str | None,
        typer.Option("--rates", help="Learning rates to try, separated by commas.", show_default="1e-3,3e-3,1e-2"),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            help="Number of sets of rate, warm-up, weight decay and beta_2 that Optuna tries (without --rates).",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", min=1, help="Number of training runs per set of settings, with seeds that no grid uses."
        ),
    ] = 3,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            help="Number of steps of every training run of the search.",
            show_default="those of the preset",
        ),
    ] = None,
    workers: Workers = None,
    per_gpu: PerGpu = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trials and the tasks that use the rates, and exit.")
    ] = False,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Choose learning rates on validation episodes, which are not used in results. Repeat the command to resume after
    an interruption.

    The command trains every contestant on every task with each rate and seed, and chooses the smallest
    rate whose mean is within one standard error of the best mean.

    If the smallest or the largest rate is best, it tries the next rate beyond it, at most twice at each end.

    With --trials, it first tries the preset's settings and nine random sets of settings. Stored trials count towards
    the number.

    It lists the rates that are not significantly different from the chosen rate (Welch's t-test over seeds, at the 5%
    level).

    It writes the chosen rates to RESULTS/rates/PRESET.toml. train, sweep and icl.train read this file.

    It stores all trials in RESULTS/rates/PRESET/.
    """
    from iclbench.cli.sweep_run import devices, gpus_of_workers
    from iclbench.cli.terminal import say
    from iclbench.cli.tune_run import pairs_of, run_trials, search_of
    from iclbench.cli.tune_tables import print_dry_run, print_pairs
    from iclbench.config.resolution import backbone_class
    from iclbench.core.context import Context
    from iclbench.core.formats import canonical, plural
    from iclbench.core.signals import sigterm_like_ctrl_c
    from iclbench.core.trust import trust_typed
    from iclbench.store.rates import results_path
    from iclbench.store.runs import write_errors

    search, preset = search_of(rates, trials), canonical(preset)
    for name in contestant:
        trust_typed(name)
        backbone_class(name)
    with sigterm_like_ctrl_c():
        device_type, gpus = devices(device)
        context = Context(results, data_dir, device_type)
        pairs = pairs_of(contestant, tasks, preset, seeds, steps, search, context)
        if dry_run:
            print_dry_run(pairs, json)
            return
        with write_errors(results):
            results.mkdir(parents=True, exist_ok=True)
        run_trials(pairs, gpus_of_workers(gpus, per_gpu, workers), context)
    print_pairs(pairs, json)
    if pairs_without_choice := [pair for pair in pairs if pair.problems]:
        first_pair = pairs_without_choice[0]
        contestants = plural(len(pairs_without_choice), "contestant")
        say(f"{contestants} without a choice: {first_pair.name}: {first_pair.problems[0]}")
        say("run the same command again to retry the failed trials")
        raise typer.Exit(1)
    say(f"rates: {results_path(results, preset)}")
