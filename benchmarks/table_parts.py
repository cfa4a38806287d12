"""Which part of an in-context learner of tables matters most: the architecture, the prior or the head?

    iclbench sweep tables --results FOLDER                 # hours; continues after a stop
    python benchmarks/judging_tables.py TABLES DATA        # writes real tables that were not used in training
    python benchmarks/table_parts.py FOLDER TABLES         # evaluates all runs on them; writes table_parts.md

Grid `tables` trains six architectures on three priors of synthetic tables with two heads, from two seeds. All models
are evaluated on the same splits of the same real tables. The share of a part is its share of the sum of squares of the
models' mean scores over the tables, in an analysis of variance with all interactions: a part with a share of 1 would
explain all differences between models. The row `seeds` has the differences between two trainings of the same model.
Intervals are 95 % intervals of a bootstrap over the tables.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from command import table_head, write_page
from jaxtyping import Float
from judging_tables import eval_command

from iclbench import tables
from iclbench.analysis.table_ranks import table_values
from iclbench.core.formats import fixed
from iclbench.sweep.grids import grid_runs

TASK = "real-tables-unseen"
PARTS = ("architecture", "prior", "head")
# Metrics, and what a reader needs to know of them.
METRICS = {"r_squared": "R² (higher is better)", "crps": "CRPS in standard deviations (lower is better)"}
BASELINES = ("ridge-cv", "forest", "xgboost-default", "gp-fit")
RESAMPLES = 10_000


def shares(
    values: Float[np.ndarray, "tables architectures priors heads seeds"], weights: Float[np.ndarray, "draws tables"]
) -> dict[str, Float[np.ndarray, " draws"]]:
    """Return the share of the sum of squares of every part, every interaction and of seeds, for each weighting of the
    tables."""
    means = np.tensordot(weights, values, 1)
    total = ((means - means.mean((1, 2, 3, 4), keepdims=True)) ** 2).sum((1, 2, 3, 4))
    axes = {part: axis + 1 for axis, part in enumerate(PARTS)}
    effects: dict[tuple[str, ...], np.ndarray] = {(): means.mean((1, 2, 3, 4), keepdims=True)}
    for size in range(1, len(PARTS) + 1):
        for names in combinations(PARTS, size):
            rest = tuple(axis for part, axis in axes.items() if part not in names)
            effect = means.mean((*rest, 4), keepdims=True)
            smaller = [key for count in range(size) for key in combinations(names, count)]
            effects[names] = effect - sum(effects[key] for key in smaller)
    seeds = means - means.mean(4, keepdims=True)
    squares = {" × ".join(key): effect for key, effect in effects.items() if key} | {"seeds": seeds}
    return {
        name: (np.broadcast_to(effect, means.shape) ** 2).sum((1, 2, 3, 4)) / total for name, effect in squares.items()
    }


def evaluate(folder: Path, table_folder: Path, runs: pd.DataFrame) -> None:
    """Evaluate the runs. A task has one head, so the runs of each head have an evaluation of their own; its prompts and
    baselines are the same."""
    for head, rows in runs.groupby("head"):
        command = eval_command("number", table_folder, rows["run"].tolist(), TASK, BASELINES, folder)
        command += ["-o", f"task.head={head}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main(folder: Path, table_folder: Path) -> None:
    runs = pd.DataFrame(
        [
            (
                run.config.backbone.name,
                run.task.removeprefix("tabular-"),
                run.config.task.head,
                run.config.seed,
                run.name,
            )
            for run in grid_runs("tables")
        ],
        columns=[*PARTS, "seed", "run"],
    )
    evaluate(folder, table_folder, runs)
    rows = tables.read_all("values", folder)
    rows = rows[rows["task"].eq(TASK) & rows["shift"].eq("none")]
    lines = []
    for metric, title in METRICS.items():
        by_run = table_values(rows, metric, "run")
        if missing := [name for name in runs["run"] if name not in by_run or by_run[name].isna().any()]:
            raise SystemExit(f"{len(missing)} runs are not evaluated on {TASK} in {folder}; the first is {missing[0]}")
        by_contestant = table_values(rows[rows["kind"].ne("backbone")], metric)
        lines += [f"## {title}, mean over {len(by_run)} tables", "", *_section(by_run, by_contestant, runs), ""]
    write_page(Path(__file__).with_suffix(".md"), "Architecture, prior and head", __doc__, lines[:-1])


def _section(by_run: pd.DataFrame, baselines: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """The means of all combinations, then of the levels of each part with its share, then of the baselines."""
    levels = [list(dict.fromkeys(runs[part])) for part in PARTS]
    index = runs.sort_values("seed").groupby(list(PARTS), sort=False)["run"].agg(list)
    names = [index[key] for key in pd.MultiIndex.from_product(levels)]
    values = by_run[np.ravel(names).tolist()].to_numpy().reshape(len(by_run), *map(len, levels), -1)
    means = values.mean((0, 4))
    architectures, priors, heads = levels
    lines = _table(
        ["architecture", *(f"{prior}, {head}" for prior in priors for head in heads)],
        [[name, *(fixed(value, 3) for value in means[a].ravel())] for a, name in enumerate(architectures)],
    )
    n = len(by_run)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES) / n
    exact, resampled = shares(values, np.full((1, n), 1 / n)), shares(values, draws)
    table = []
    for name, share in exact.items():
        low, high = np.quantile(resampled[name], [0.025, 0.975])
        by_level = ""
        if name in PARTS:
            axis = PARTS.index(name)
            marginal = means.mean(tuple(other for other in range(3) if other != axis))
            by_level = ", ".join(
                f"{level} {fixed(value, 3)}" for level, value in zip(levels[axis], marginal, strict=True)
            )
        table.append([name, fixed(share[0], 2), f"{fixed(low, 2)} to {fixed(high, 2)}", by_level])
    lines += ["", *_table(["part", "share", "interval", "means"], table)]
    if len(baselines.columns):
        table = [[str(name), fixed(value, 3)] for name, value in baselines.mean().items()]
        lines += ["", *_table(["baseline, from the same rows", "mean"], table)]
    return lines


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*table_head(columns), *(f"| {' | '.join(row)} |" for row in rows)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", type=Path)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.tables)
