"""Effect of the mixer, of the block around it, and of the size of its state on the score.

    iclbench sweep blocks --results FOLDER      # about three hours on one core; resumes if interrupted
    python benchmarks/blocks.py FOLDER          # writes blocks.md

Grid `blocks` gives six mixers (five on `markov`) the same channel MLP, once with a convolution of four taps before the
mixer and once without. With the convolution, five of them are also trained with states of about the same size; the
cache of attention grows with the context. Scores are those of the report: the area under the learning curve up to the
training length, where 0 is the zero predictor (`markov`: equal probabilities) and 1 is the optimum: ridge (`linear`),
the average over all supports (`sparse-linear`) or the average over all chains (`markov`). `state` is the number of
float32 values that a model stores per episode after the context of the preset. A part without a score in FOLDER is
empty; a task without scores keeps its rows. In these rows, mamba2 and gated-deltanet have the rate 1e-2 on `linear`
and `sparse-linear`, as in the reference grid at that time.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from command import available_scores, folder_and_page, state_size, table_head, write_page

from iclbench import tables
from iclbench.config.resolution import RunConfig
from iclbench.core.formats import fixed, integer
from iclbench.sweep.grids import grid_runs

BLOCKS = ("with", "without", "equal state")
COLUMNS = (
    "task",
    "mixer",
    *(f"{block}, {of}" for block in BLOCKS for of in ("state", "seed 0", "seed 1", "mean")),
    "with less without",
    "equal state less with",
)


def main(folder: Path, out: Path) -> None:
    values = tables.read_all("values", folder)
    rows = pd.DataFrame(
        [
            (run.task, run.backbone, _block(run.config), run.config.seed, run.name, state_size(run.config))
            for run in grid_runs("blocks")
        ],
        columns=["task", "mixer", "block", "seed", "run", "state"],
    )
    rows["score"] = available_scores(values, rows["run"])
    lines = table_head(COLUMNS)
    for task, task_rows in rows.groupby("task", sort=False):
        missing = task_rows[task_rows["score"].isna()]
        if missing["block"].isin(("with", "without")).any():
            lines += _existing_lines(str(task), out, f"'{missing['run'].iloc[0]}' has no score in {folder}")
        else:
            lines += _lines(str(task), task_rows)
    write_page(out, "Blocks of sequence mixers", __doc__, lines)


def _existing_lines(task: str, page: Path, problem: str) -> list[str]:
    """Return the lines of a task in the existing page. Exit if it has none."""
    lines = page.read_text().splitlines() if page.is_file() else []
    lines = [line for line in lines if line.startswith(f"| {task} |") and line.count("|") == len(COLUMNS) + 1]
    if not lines:
        raise SystemExit(problem)
    return lines


def _block(config: RunConfig) -> str:
    settings = config.backbone.settings
    return "equal state" if "state_budget" in settings else "without" if settings["conv"] == 0 else "with"


def _lines(task: str, rows: pd.DataFrame) -> list[str]:
    """Return one line per mixer, in descending order of the score with a convolution. Missing scores are empty."""
    columns = pd.MultiIndex.from_product([BLOCKS, sorted(rows["seed"].unique())])
    scores = rows.pivot_table("score", "mixer", ["block", "seed"]).reindex(columns=columns)
    means = rows.pivot_table("score", "mixer", "block").reindex(columns=BLOCKS)
    states = rows[rows["score"].notna()].pivot_table("state", "mixer", "block").reindex(columns=BLOCKS)
    lines = []
    for mixer in means.sort_values("with", ascending=False).index:
        cells = []
        for block in BLOCKS:
            state = states.loc[mixer, block]
            cells.append("" if pd.isna(state) else integer(state))
            cells += [_score(n) for n in (*scores.loc[mixer, block], means.loc[mixer, block])]
        mean = means.loc[mixer]
        cells += [_score(mean["with"] - mean["without"]), _score(mean["equal state"] - mean["with"])]
        lines.append(" | ".join([f"| {task}", str(mixer), *cells]) + " |")
    return lines


def _score(value: float) -> str:
    return "" if pd.isna(value) else fixed(value, 3)


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
