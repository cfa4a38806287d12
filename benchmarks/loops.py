"""Score of one block of GPT-2 that is applied several times, against further blocks.

    iclbench sweep loops --results FOLDER       # about an hour of one core; continues after a stop
    python benchmarks/loops.py FOLDER           # writes loops.md

Grid `loops` compares, at preset `grid`, one block that is applied 12 times (`looped`) with GPT-2 of the same number of
parameters in two blocks (`equal-parameters`) and with 12 different blocks of the size of the looped block (`deep`).
Scores are those of the report: the area under the learning curve up to the training length, where 0 is the zero
predictor and 1 is the optimum, ridge (`linear`) or the average over all supports (`sparse-linear`). FLOPs are those of
the answers to all questions of one prompt, counted in an untrained model. The second table has the means over seeds of
the area under the learning curve (normalised squared error, lower is better) when the weights of the looped model are
applied more or fewer times than in training. A task without all scores in FOLDER has no rows.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from command import available_scores, folder_and_page, table_head, write_page

from iclbench import tables
from iclbench.analysis.loops import loop_values
from iclbench.config.resolution import RunConfig
from iclbench.core.formats import fixed, flops, integer
from iclbench.core.seeds import generator
from iclbench.evaluation.costs.flops import count_flops
from iclbench.families.request import Request
from iclbench.sweep.grids import grid_runs

COLUMNS = ("task", "model", "parameters", "FLOPs", "seed 0", "seed 1", "seed 2", "mean")


def main(folder: Path, out: Path) -> None:
    values = tables.read_all("values", folder)
    runs = pd.DataFrame(
        [(run.task, _model(run.config), run.config, run.name) for run in grid_runs("loops")],
        columns=["task", "model", "config", "run"],
    )
    runs["seed"] = [config.seed for config in runs["config"]]
    runs["score"] = available_scores(values, runs["run"])
    runs = runs[runs["score"].notna().groupby(runs["task"]).transform("all")]
    if runs.empty:
        raise SystemExit(f"no task has the scores of all its runs in {folder}")
    lines = table_head(COLUMNS)
    for (task, model), rows in runs.groupby(["task", "model"], sort=False):
        parameters, count = _size(rows["config"].iloc[0])
        by_seed = rows.sort_values("seed")["score"]
        cells = [integer(parameters), flops(count), *(fixed(score, 3) for score in (*by_seed, by_seed.mean()))]
        lines.append(f"| {task} | {model} | {' | '.join(cells)} |")
    write_page(out, "Loops", __doc__, [*lines, "", *_areas(values, runs)])


def _areas(values: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """A line per task with the mean area for each number of iterations."""
    looped = runs[runs["model"].eq("looped")]
    areas = loop_values(values[values["run"].isin(looped["run"]) & values["shift"].eq("none")])
    areas = areas.astype({"value": float, "axis_value": int}).merge(looped[["run", "task"]], on=["run", "task"])
    table = areas.pivot_table("value", "task", "axis_value").loc[list(dict.fromkeys(looped["task"]))]
    columns = ["task", *(f"{loops} times" for loops in table.columns)]
    lines = table_head(columns)
    return lines + [f"| {task} | {' | '.join(fixed(area, 3) for area in row)} |" for task, row in table.iterrows()]


def _model(config: RunConfig) -> str:
    settings = config.backbone.settings
    return "looped" if settings.get("loops", 1) > 1 else "deep" if settings["layers"] > 2 else "equal-parameters"


@torch.inference_mode()
def _size(config: RunConfig) -> tuple[int, int]:
    """The number of parameters, and the FLOPs of the answers to all questions of one prompt."""
    family = config.task.build()
    backbone = config.build(family).eval()
    episodes = family.sample_all_related(Request(1, config.task.points, generator(0, "costs", config.task.points)))
    return backbone.parameter_count, count_flops(lambda: backbone.ask(episodes, "next"))


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
