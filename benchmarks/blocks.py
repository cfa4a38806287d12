"""Effect of the mixer and of the block around it on the score.

    iclbench sweep blocks --results FOLDER      # about two hours of one core; continues after a stop
    python benchmarks/blocks.py FOLDER          # writes blocks.md

Grid `blocks` gives six mixers the same channel MLP, once with a convolution of four taps before the mixer and once
without. Scores are those of the report: the area under the learning curve up to the training length, where 0 is the
zero predictor and 1 is the optimum: ridge (`linear`) or the average over all supports (`sparse-linear`).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from command import folder_and_page, scores, write_page

from iclbench import tables
from iclbench.core.formats import fixed
from iclbench.sweep.grids import grid_runs

BLOCKS = ("with", "without")
COLUMNS = (
    "task",
    "mixer",
    *(f"{block}, {of}" for block in BLOCKS for of in ("seed 0", "seed 1", "mean")),
    "with less without",
)


def main(folder: Path, out: Path) -> None:
    values = tables.read_all("values", folder)
    rows = pd.DataFrame(
        [
            (run.task, run.backbone, BLOCKS[run.config.backbone.settings["conv"] == 0], run.config.seed, run.name)
            for run in grid_runs("blocks")
        ],
        columns=["task", "mixer", "block", "seed", "run"],
    )
    rows["score"] = scores(values, rows["run"], folder)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for task, task_rows in rows.groupby("task", sort=False):
        lines += _lines(str(task), task_rows.pivot_table("score", "mixer", ["block", "seed"]))
    write_page(out, "Blocks of sequence mixers", __doc__, lines)


def _lines(task: str, scores: pd.DataFrame) -> list[str]:
    """One line per mixer, by the score with a convolution, best first."""
    means = scores.T.groupby(level="block").mean().T
    lines = []
    for mixer in means.sort_values("with", ascending=False).index:
        numbers = [n for block in BLOCKS for n in (*scores.loc[mixer, block], means.loc[mixer, block])]
        numbers.append(means.loc[mixer, "with"] - means.loc[mixer, "without"])
        lines.append(" | ".join([f"| {task}", str(mixer), *(fixed(n, 3) for n in numbers)]) + " |")
    return lines


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
