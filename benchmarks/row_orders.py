"""What averaging over orders of the context rows gains on real tables (`n_permutations`).

    python benchmarks/row_orders.py DATA    # minutes; writes row_orders.md

Causal models of the reference (task `tabular`, preset `grid`, seed 0) read as many rows as in training, and at most
five random columns. DATA is a data folder with `tabular/` (autos and fertility). The models read rows of other tables
in training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import iclbench as icl
from iclbench.families.tabular.real_tables import RealTables, RealTablesParameters

OUT = Path(__file__).with_suffix(".md")
MODELS = ("gpt2", "gpt2-learned", "mamba", "gated-deltanet")
TABLES = ("diabetes", "autos", "fertility")
ORDERS = (1, 4, 16)
SPLITS, TARGETS, COLUMNS = 40, 60, 5
HEADER = """# Averages over orders of the context rows

Mean squared error on target rows, divided by the variance of the target in the table, if predictions are averaged over
1, 4 or 16 random orders of the context rows. Means over 40 splits with 12 context rows; one training run of each model
(`benchmarks/row_orders.py`).

| model | table | 1 order | 4 orders | 16 orders | better with 4 |
| --- | --- | --- | --- | --- | --- |
"""


def errors(run: icl.TrainedRun, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the errors of all splits, `(SPLITS, len(ORDERS))`."""
    rng, rows = np.random.default_rng(0), run.run.config.task.points
    result = np.empty((SPLITS, len(ORDERS)))
    for split in range(SPLITS):
        order, columns = rng.permutation(len(y)), rng.permutation(x.shape[1])[:COLUMNS]
        context, targets = order[:rows], order[rows : rows + TARGETS]
        for i, count in enumerate(ORDERS):
            model = icl.InContextRegressor(run, n_permutations=count, random_state=split)
            predictions = model.fit(x[context][:, columns], y[context]).predict(x[targets][:, columns])
            result[split, i] = np.mean((predictions - y[targets]) ** 2) / y.var()
    return result


def main() -> None:
    data = Path(sys.argv[1])
    family = RealTables(RealTablesParameters(kind="number", dim=COLUMNS, path="tabular", tables=TABLES), data)
    lines = []
    with TemporaryDirectory() as results:
        for name in MODELS:
            run = icl.load(f"reference/tabular-{name}-grid-s0", results, data_dir=data)
            for table in family.tables:
                by_split = errors(run, np.asarray(table.encoded), np.asarray(table.y, float))
                means = " | ".join(f"{error:.3f}" for error in by_split.mean(0))
                share = np.mean(by_split[:, ORDERS.index(4)] < by_split[:, 0])
                lines.append(f"| `{name}` | {table.name} | {means} | {share:.2f} |\n")
    OUT.write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
