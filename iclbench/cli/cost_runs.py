"""Measure the costs of runs and baselines, and print the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.cli.terminal import out, print_rows, print_table, say, step_bar
from iclbench.config.cards import load_baseline
from iclbench.config.resolution import TaskConfig
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.evaluation.contestants import PredictorContestant, backbone, baselines
from iclbench.evaluation.costs.costs import CostSizes, measure_costs
from iclbench.evaluation.prompts import PromptSet
from iclbench.report.blocks import Table
from iclbench.report.cost_table import CALL_COLUMNS, COLUMNS, MACHINE_KEYS, call_cost_table, cost_table
from iclbench.store.runs import Run


def measure_all(
    context: Context,
    runs: Sequence[Run],
    baseline: Sequence[str],
    sizes: CostSizes,
    json: bool,
) -> int:
    """Measure runs, then baselines, and print the costs. Return the number of failed measurements.

    Without `sizes.points`, the numbers of points are those of `default_points`.
    """
    written_paths: list[Path] = []
    failed_count = 0

    def measure(contestant: PredictorContestant, run: Run) -> int:
        path, lines, missing_count = measure_costs(
            context,
            contestant,
            run.config.task,
            run.config.preset,
            sizes if sizes.points else replace(sizes, points=default_points(run.config.task)),
            train=run.config.train,
        )
        written_paths.append(path)
        for line in lines:
            say(line)
        return missing_count

    with step_bar("measure", len(runs)) as update:
        for number, run in enumerate(runs, 1):
            try:
                failed_count += measure(backbone(run, context.device, context.data_dir), run)
            except UsageError as error:
                if len(runs) == 1:
                    raise
                failed_count += 1  # continue with the other runs
                say(f"skipped run '{run.name}': {error}")
            update(number, run.name)
    requests = list(_baselines(runs, baseline, context.data_dir))
    try:
        for run, prompts, name in requests:
            try:
                (contestant,) = baselines(prompts, [name])
                failed_count += measure(contestant, run)
            except UsageError as error:
                if len(requests) == 1:
                    raise
                failed_count += 1  # continue with the other baselines
                say(f"skipped baseline '{name}' on {run.config.task.name}, {run.config.preset}: {error}")
    finally:  # print the measurements even if a baseline is not applicable
        print_costs(written_paths, json)
    return failed_count


def default_points(task: TaskConfig) -> list[int]:
    """Return the numbers of context points at which costs are measured by default.

    For streams and events, they depend on the training length, since learned position embeddings are not longer. A
    number that the family does not accept is omitted.
    """
    family = task.build()
    if not (family.is_stream or family.marks is not None):
        return [40, 500]
    sizes = dict.fromkeys([max(1, task.points // 2), task.points])
    return [n for n in sizes if family.accepts(task.point_count(n), f"points-{n}")]


def _baselines(
    runs: Sequence[Run], names: Sequence[str], data_dir: Path | None
) -> Iterator[tuple[Run, PromptSet, str]]:
    """Yield the requested baselines for each task and preset of the runs: a run, its prompts, and the baseline's name
    or path."""
    requested_names = {load_baseline(name)[0]: name for name in names if name != "all"}
    for run in {(r.config.task.name, r.config.preset): r for r in runs}.values() if names else ():
        prompts = PromptSet(run.config.task, run.config.preset, data_dir=data_dir)
        yield from ((run, prompts, name) for name in requested_names.values())
        if "all" in names:
            card_names = dict.fromkeys([*run.config.task.oracles, *run.config.task.baselines])
            yield from ((run, prompts, name) for name in card_names if load_baseline(name)[0] not in requested_names)


def print_costs(written_paths: Sequence[Path], json: bool) -> None:
    """Print one table per task, preset, machine and batch size, or all rows as JSON."""
    frames = [tables.read("costs", path) for path in dict.fromkeys(written_paths)]
    rows = pd.concat(frames, ignore_index=True) if frames else tables.frame("costs", [])
    if json:
        print_rows(rows)
        return
    headers = _headers([column.header for column in COLUMNS])
    for (task, preset, device, threads), group in rows.groupby(["task", "preset", *MACHINE_KEYS], sort=False):
        for _, batch in cost_table(group).groupby("n_episodes", dropna=False):
            block = Table("", "", "", batch.reset_index(drop=True), COLUMNS)
            print_table(
                f"{task}, {preset}: {device}, {threads} thread{'' if threads == 1 else 's'}",
                headers,
                [[cell.text for cell in row] for row in block.rows()],
                range(1, len(headers)),
                keys=(0, [column.key for column in COLUMNS].index("n_points")),
            )
            episodes = batch["n_episodes"].dropna()
            scope = f"; all other values are per episode, in batches of {episodes.iloc[0]}" if len(episodes) else ""
            out.print(f"Values of training steps are per batch{scope}.\n")
        call_costs = Table("", "", "", call_cost_table(group), CALL_COLUMNS)
        if len(call_costs.frame):
            print_table(
                "several queries or new points in one call, total per episode",
                [column.header for column in CALL_COLUMNS],
                [[cell.text for cell in row] for row in call_costs.rows()],
                range(2, len(CALL_COLUMNS)),
                keys=range(4),
            )
            out.print()


def _headers(report_headers: Sequence[str]) -> list[str]:
    """Return headers that are clear without their neighbours, since a wide table is printed in blocks of columns.

    >>> _headers(["training step", "its time", "its memory", "n"])
    ['training step', 'step time', 'step memory', 'n']
    """
    headers, subject = [], ""
    for header in report_headers:
        noun = header.removeprefix("its ")
        subject = subject if noun != header else header.split()[-1]
        headers.append(f"{subject} {noun}" if noun != header else header)
    return headers
