"""`iclbench cost [RUN...]`: what runs and baselines cost in time and memory, measured on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import (
    RESULTS,
    DataDir,
    Device,
    Json,
    MaxBytes,
    Results,
    Threads,
    Trust,
    chosen_runs,
    set_up_torch,
)

if TYPE_CHECKING:
    from iclbench.config.runs import Run
    from iclbench.evaluation.contestants import PredictorContestant


def cost(
    run: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=completion.runs, help="Runs to measure; none: all finished ones."),
    ] = None,
    points: Annotated[
        list[int] | None,
        typer.Option(
            "--points", min=1, help="Points to be conditioned on; may be repeated.", show_default="40 and 500"
        ),
    ] = None,
    queries: Annotated[
        list[int] | None,
        typer.Option("--queries", min=1, help="Queries answered at once, besides one; may be repeated."),
    ] = None,
    updates: Annotated[
        list[int] | None,
        typer.Option("--update", min=1, help="Points an update takes in at once, besides one; may be repeated."),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes side by side.")] = 64,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            autocompletion=completion.baselines,
            help="Measure this baseline too; 'all': the card's that are not fitted one by one.",
        ),
    ] = None,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Measure parameters, state, FLOPs, time and memory of a training step, conditioning, a query and an update."""
    from iclbench.cli.terminal import say, step_bar
    from iclbench.config.cards import load_baseline
    from iclbench.core.errors import UsageError

    runs = chosen_runs(results, run)
    for name in baseline or []:
        if name != "all":
            load_baseline(name)  # a mistyped name fails before anything is measured
    chosen = set_up_torch(device, threads)
    from iclbench.evaluation.contestants import backbone
    from iclbench.evaluation.costs.costs import Sizes, measure_costs

    sizes = Sizes(points or [40, 500], queries or [], updates or [], episodes)
    written: list[Path] = []
    failed = 0

    def measure(contestant: PredictorContestant, of: Run) -> int:
        path, lines, missing = measure_costs(
            results,
            contestant,
            of.config.task,
            of.config.preset,
            sizes,
            train=of.config.train,
            data_dir=data_dir,
        )
        written.append(path)
        for line in lines:
            say(line)
        return missing

    with step_bar("measure", len(runs)) as update:
        for done, each in enumerate(runs, 1):
            try:
                failed += measure(backbone(each, chosen, data_dir), each)
            except UsageError as error:
                if len(runs) == 1:
                    raise
                failed += 1  # the others go on
                say(f"skipped run '{each.name}': {error}")
            update(done, each.name)
    for of, contestant in _baselines(runs, baseline or [], data_dir):
        failed += measure(contestant, of)
    _print(written, json)
    if failed:
        raise typer.Exit(1)


def _baselines(
    runs: Sequence[Run], names: Sequence[str], data_dir: Path | None
) -> Iterator[tuple[Run, PredictorContestant]]:
    """The asked baselines, once for every task and preset among the runs."""
    from iclbench.evaluation.contestants import baselines
    from iclbench.evaluation.prompts import PromptSet

    for of in {(r.config.task.name, r.config.preset): r for r in runs}.values() if names else ():
        task = of.config.task
        prompts = PromptSet(task, of.config.preset, data_dir=data_dir)
        known = [name for name in names if name != "all"]
        extra = [] if "all" not in names else [*task.oracles, *task.baselines]
        for contestant in baselines(prompts, dict.fromkeys([*known, *extra])):
            if contestant.name in known or contestant.prefixes is None:
                yield of, contestant


def _print(written: Sequence[Path], json: bool) -> None:
    """One table per task, preset, machine and batch, or all rows as JSON."""
    import pandas as pd

    from iclbench import tables
    from iclbench.cli.terminal import out, table
    from iclbench.report.blocks import Table
    from iclbench.report.cost_table import AT_ONCE, COLUMNS, MACHINE, at_once_table, cost_table

    frames = [tables.read("costs", path) for path in dict.fromkeys(written)]
    rows = pd.concat(frames, ignore_index=True) if frames else tables.frame("costs", [])
    if json:
        typer.echo(rows.to_json(orient="records", indent=2))
        return
    headers = _headers([column.header for column in COLUMNS])
    for (task, preset, device, threads), group in rows.groupby(["task", "preset", *MACHINE], sort=False):
        for _, batch in cost_table(group).groupby("n_episodes", dropna=False):
            shown = Table("", "", "", batch.reset_index(drop=True), COLUMNS)
            table(
                f"{task}, {preset}: {device}, {threads} thread{'' if threads == 1 else 's'}",
                headers,
                [[cell.text for cell in row] for row in shown.rows()],
                range(1, len(headers)),
                keys=(0, [column.key for column in COLUMNS].index("n_points")),
            )
            episodes = batch["n_episodes"].dropna()
            told = f"; all else is per episode, {episodes.iloc[0]} of them side by side" if len(episodes) else ""
            out.print(f"Training steps are of a whole batch{told}.\n")
        several = Table("", "", "", at_once_table(group), AT_ONCE)
        if len(several.frame):
            table(
                "several at once, all together, per episode",
                [column.header for column in AT_ONCE],
                [[cell.text for cell in row] for row in several.rows()],
                range(2, len(AT_ONCE)),
                keys=range(4),
            )
            out.print()


def _headers(of_report: Sequence[str]) -> list[str]:
    """Headers that stand alone, where a table is printed in blocks.

    >>> _headers(["training step", "its time", "its memory", "n"])
    ['training step', 'step time', 'step memory', 'n']
    """
    found, subject = [], ""
    for header in of_report:
        what = header.removeprefix("its ")
        subject = subject if what != header else header.split()[-1]
        found.append(f"{subject} {what}" if what != header else header)
    return found
