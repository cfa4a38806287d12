"""Number of steps at preset `grid` after which the scores of a task separate architectures.

    iclbench sweep grids/steps.toml --results FOLDER      # hours; the same command continues after a stop
    python benchmarks/grid_steps.py FOLDER                # writes grid_steps.md from the finished runs

Every run of the pilot gives three results, after a quarter, half and all of its steps. Scores separate
architectures if the median gap between adjacent quartiles of contestants is more than twice the standard deviation over
seeds, without the best and the worst contestant (`iclbench.analysis.separation`). Scores are areas under learning
curves, log-likelihoods without related datasets, and accuracies on `icl` and `iwl`. The page has a task when all its
backbones have two runs. Lines of tasks without runs in FOLDER are unchanged, so tasks can be trained in several
folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from command import folder_and_page, table_head, write_page

from iclbench import tables
from iclbench.analysis.separation import MIN_RATIO, separation
from iclbench.core.formats import fixed
from iclbench.sweep.grids import grid_runs

# The question or test, and the metric, by which contestants on a family are ranked.
MEASURED = (
    ("next", "auc"),
    ("targets", "log_likelihood"),
    ("icl", "accuracy_within_choices"),
    ("iwl", "accuracy_within_choices"),
)
COLUMNS = ("task", "steps", "backbones", "gap", "sd over seeds", "gap / sd", "separated", "longest run (s)")


def main(folder: Path, out: Path) -> None:
    values, costs = tables.read_all("values", folder), tables.read_all("costs", folder)
    planned_runs = pd.DataFrame(
        [(run.config.task.name, run.name) for run in grid_runs("steps")], columns=["task", "run"]
    )
    old_lines = out.read_text().splitlines() if out.is_file() else []
    lines = table_head(COLUMNS)
    for task, runs in planned_runs.groupby("task", sort=False)["run"]:
        seconds = costs[costs["run"].isin(runs) & costs["phase"].eq("train") & costs["metric"].eq("seconds")]
        task_lines = [f"| {line} |" for line in _lines(str(task), values[values["run"].isin(runs)], set(runs), seconds)]
        lines += task_lines or [line for line in old_lines if line.startswith((f"| {task} |", f"| {task} · "))]
    note = (
        "Made by `benchmarks/grid_steps.py` from `grids/steps.toml`: seeds 100 and 101, prompts of evaluation seed 1. "
        f"Separated: a gap of more than {MIN_RATIO:g} standard deviations. With two seeds of nine backbones, the "
        "standard deviation is uncertain (95 %: a ratio of 2.06 may be 1.1 or 3.0), so `linear`, which represents all "
        "function classes, is a close call at 3,000 steps. The learning rates were older ones (`grid_rates.md`), "
        "chosen on the prompts of the same evaluation seed. Images are not separated, and take more than ten minutes "
        "per run at 6,000 steps."
    )
    write_page(out, "Steps of preset `grid`", __doc__, lines, note)


def _lines(task: str, values: pd.DataFrame, runs: set[str], seconds: pd.DataFrame) -> Iterator[str]:
    ok = values[values["status"].eq("ok") & values["shift"].eq("none") & values["n_context"].isna()]
    ok = ok[ok["n_related"].isna() | ok["n_related"].eq(0).fillna(False)]
    for evaluator, metric in MEASURED:
        evaluator_rows = ok[ok["evaluator"].eq(evaluator) & ok["metric"].eq(metric)]
        main = evaluator_rows[evaluator_rows["axis"].isna()]
        if set(main["run"]) != runs:
            continue
        longest = seconds["value"].max()
        steps = int(values.loc[values["axis"].eq("train_step"), "axis_value"].max())
        points = [*evaluator_rows[evaluator_rows["axis"].eq("branch")].groupby("axis_value"), (steps, main)]
        for at, rows in points:
            separated_by = separation(rows.set_index(["contestant", "run"])["value"])
            assert separated_by is not None
            name = task if evaluator in ("next", "targets") else f"{task} · {evaluator}"
            numbers = (fixed(separated_by.gap, 4), fixed(separated_by.sd, 4), fixed(separated_by.ratio, 2))
            separated = "yes" if separated_by.is_clear else "no"
            ended = f"{longest:.0f}" if at == steps else ""
            yield " | ".join([name, f"{int(at):,}", str(separated_by.contestants), *numbers, separated, ended])


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
