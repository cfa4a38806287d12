"""Synthetic rows of `iclbench probe` about the rank of predictions and learned representations."""

from pathlib import Path

import numpy as np

from iclbench import __version__, tables
from tests.tables.rows import complete_row

TASK, FEATURES = "combination", 3
CONTEXTS = [4, 8, 16, 32, 64]
# Kind, seeds, and rank as a function of the number of contexts, for each contestant.
RANKS = {
    "coqe": ("backbone", [0, 1], lambda m: min(m, 5)),
    "gpt2": ("backbone", [0], lambda m: m**0.8),
    "least-squares": ("baseline", [None], lambda m: min(m, 4)),
}
R_SQUARED = {"coqe": [0.99, 0.95, 0.9], "least-squares": [0.2, 0.5, 0.1]}
INPUTS = np.linspace(-3, 3, 13)


def true_feature(feature: int, x: np.ndarray) -> np.ndarray:
    return [np.abs(x), x**2, x**3][feature]


def write(folder: Path) -> Path:
    """Write the folder and return it."""
    values: list[dict[str, object]] = []
    for name, (kind, seeds, rank) in RANKS.items():
        for seed in seeds:
            for m in CONTEXTS:
                columns = {"axis": "contexts", "axis_value": float(m), "n_context": 20, "prompt_set": "rank-0"}
                values += [
                    _row(name, kind, seed, "rank", metric, value + (seed or 0), columns)
                    for metric, value in {"effective_rank": 0.8 * rank(m), "rank": float(int(rank(m)))}.items()
                ]
    for name, scores in R_SQUARED.items():
        kind, seed = RANKS[name][0], RANKS[name][1][0]
        for index, score in enumerate(scores, start=1):
            columns = {"axis": "feature", "axis_value": float(index), "low": score - 0.01, "high": score + 0.01}
            values.append(_row(name, kind, seed, "representation", "r_squared", score, columns))
        values.append(_row(name, kind, seed, "representation", "r_squared", float(np.mean(scores)), {}))
    tables.write("values", values, folder / "inside.values.parquet", {})
    tables.write("examples", _examples(), folder / "inside.examples.parquet", {})
    return folder


def _row(
    name: str, kind: str, seed: int | None, evaluator: str, metric: str, value: float, columns: dict[str, object]
) -> dict[str, object]:
    run = name if seed is None else f"{TASK}-{name}-small-s{seed}"
    row = {
        "run": run,
        "task": TASK,
        "family": "combination",
        "contestant": name,
        "kind": kind,
        "preset": "small",
        "seed": seed,
        "shift": "none",
        "evaluator": evaluator,
        "metric": metric,
        "value": value,
        "n_episodes": 64,
        "status": "ok",
        "prompt_set": "representation-0",
        "card": "c0ffee",
        "version": __version__,
        **columns,
    }
    return complete_row(row)


def _examples() -> list[dict[str, object]]:
    shared = {
        "run": f"{TASK}-coqe-small-s0",
        "task": TASK,
        "contestant": "coqe",
        "kind": "backbone",
        "preset": "small",
        "seed": 0,
        "shift": "none",
        "prompt_set": "representation-0",
        "episode": 0,
        "version": __version__,
    }
    rows = []
    for output in range(FEATURES):
        for point, (x, y) in enumerate(zip(INPUTS, true_feature(output, INPUTS), strict=True)):
            row = shared | {"output": output, "point": point, "x1": float(x)}
            rows.append(row | {"role": "function", "value": float(y)})
            rows.append(row | {"role": "predicted", "value": float(y) + 0.1, "low": float(y), "high": float(y) + 0.2})
            # The first dimension is 5 + 3 x in the rows of the first feature. All other values are constant.
            for dimension, value in enumerate((5 + 3 * x * (output == 0), -1.0)):
                rows.append(row | {"role": "dimension", "output": dimension, "set": output, "value": float(value)})
    return rows
