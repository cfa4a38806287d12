"""Effect of positions on the learning speed and the extrapolation of causal Transformers.

    iclbench sweep positions --results FOLDER   # about an hour of one core; continues after a stop
    python benchmarks/positions.py FOLDER       # writes positions.md

GPT-2 is trained at preset `grid` without positions and with learned, sinusoidal and rotary positions, each with its own
learning rate. Scores are those of the report: the area under the learning curve up to the training length, where 0 is
the zero predictor and 1 the oracle or, without one, the best baseline. Errors are normalised squared errors (about 1
for the zero predictor) on prompts of four times the training length: after as many examples as in training, twice and
four times as many, as means over seeds. Learned positions end at the training length. Sinusoidal positions are those of
Chan et al. (2022), with shorter waves than those of Vaswani et al., added to unscaled embeddings. In the trials that
chose their rate, scores vary more with the seed than with the rate.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from command import folder_and_page, scores, write_page

from iclbench import tables
from iclbench.core.formats import fixed
from iclbench.sweep.grids import grid_runs

SEEDS, TIMES = (0, 1), (1, 2, 4)
COLUMNS = ("task", "backbone", *(f"seed {n}" for n in SEEDS), "mean", *(f"error at {n}x" for n in TIMES))


def main(folder: Path, out: Path) -> None:
    values = tables.read_all("values", folder)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    runs = pd.DataFrame(
        [(run.task, run.backbone, run.config.seed, run.config.task.points, run.name) for run in grid_runs("positions")],
        columns=["task", "backbone", "seed", "points", "run"],
    )
    runs["score"] = scores(values, runs["run"], folder)
    is_complete = values["kind"].eq("backbone") & values["evaluator"].eq("next") & values["axis"].isna()
    errors = values[is_complete & values["metric"].eq("squared_error")].set_index(["shift", "n_context", "run"])[
        "value"
    ]
    errors = errors.astype(float)
    for (task, points), of_task in runs.groupby(["task", "points"], sort=False):
        line_by_backbone = {}
        for backbone, backbone_rows in of_task.groupby("backbone"):
            by_seed = backbone_rows.set_index("seed")["score"]
            errors_by_length = [
                errors.reindex([(f"points-{TIMES[-1] * points}", n * points, r) for r in backbone_rows["run"]])
                for n in TIMES
            ]
            cells = [fixed(score, 3) for score in (*by_seed.loc[list(SEEDS)], by_seed.mean())]
            cells += [fixed(each.mean(), 2) if each.notna().all() else "–" for each in errors_by_length]
            line_by_backbone[backbone] = f"| {task} | {backbone} | {' | '.join(cells)} |"
        lines += [
            line_by_backbone[backbone]
            for backbone in of_task.groupby("backbone")["score"].mean().sort_values().index[::-1]
        ]
    write_page(out, "Positions of a causal Transformer", __doc__, lines)


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
