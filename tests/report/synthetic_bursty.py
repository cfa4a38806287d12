"""A synthetic results folder of bursty classification.

On `bursty`, the ICL accuracy of CoQE rises early and then falls, and the Transformer learns only in its weights. CoQE
has two variants, one of which has a single seed. The second task of the family, `bursty-alpha1`, has published numbers.
"""

from pathlib import Path

import numpy as np

from iclbench import __version__, tables
from tests.tables.rows import complete_row

EPISODES = 128
STEPS = [500, 1000, 2000, 3000, 4000]
TASKS = ["bursty", "bursty-alpha1"]
# Accuracy of guessing in each test.
TESTS = {"icl": 0.5, "icl_paired": 0.25, "iwl": 0.0025, "flip": 0.5}
# Backbone, hash of the settings, and seeds of each variant.
VARIANTS = {
    "transformer": ("transformer", "aaaaaaaa", [0, 1, 2]),
    "coqe": ("coqe", "bbbbbbbb", [0, 1, 2]),
    "coqe-paper": ("coqe", "cccccccc", [0]),
}
# Accuracies at the training steps in `STEPS`, by name and test.
CURVES = {
    ("transformer", "icl"): [0.50, 0.55, 0.52, 0.51, 0.50],
    ("transformer", "iwl"): [0.05, 0.30, 0.70, 0.85, 0.92],
    ("coqe", "icl"): [0.55, 0.90, 0.80, 0.74, 0.72],
    ("coqe", "iwl"): [0.02, 0.10, 0.50, 0.70, 0.80],
    ("coqe-paper", "icl"): [0.50, 0.60, 0.66, 0.68, 0.69],
    ("coqe-paper", "iwl"): [0.02, 0.10, 0.30, 0.45, 0.56],
}
BASELINES = {
    "pixel-1nn": {"icl": 0.86, "icl_paired": 0.75, "iwl": 0.0, "flip": 0.86},
    "nearest-class-mean": {"icl": 0.84, "icl_paired": 0.70, "iwl": 0.0, "flip": 0.84},
    "majority": {"icl": 0.5, "icl_paired": 0.25, "iwl": 0.0, "flip": 0.5},
    "chance": TESTS,
}
PUBLISHED = {("coqe", "icl"): 0.9171, ("coqe", "iwl"): 0.8994, ("transformer", "icl"): 0.8412}


def accuracy(name: str, task: str, test: str, seed: int) -> list[float]:
    """Return the accuracy of a run at each step in `STEPS`."""
    icl, iwl = (np.array(CURVES[name, test]) for test in ("icl", "iwl"))
    offset = 0.03 * (task == "bursty-alpha1")
    curve = {
        "icl": icl + offset,
        "icl_paired": 2 * icl - 0.85,
        "iwl": iwl - offset,
        "flip": 0.5 + (icl - 0.5) - 0.5 * iwl,
        "targets": 0.5 * (icl + iwl),
    }[test]
    return [float(np.clip(v + 0.02 * (seed - 1) * (seed > 0), 0, 1)) for v in curve]


def run_of(name: str, task: str, seed: int) -> str:
    return f"{task}-{name}-small-s{seed}"


def write(folder: Path) -> Path:
    """Write the folder and return it."""
    for task in TASKS:
        values: list[dict[str, object]] = []
        for name, (backbone, variant, seeds) in VARIANTS.items():
            for seed in seeds:
                columns = {
                    "run": run_of(name, task, seed),
                    "contestant": backbone,
                    "kind": "backbone",
                    "seed": seed,
                    "variant": variant,
                }
                loss = columns | {"evaluator": "train"}
                values += [_row(task, None, "loss", 0.9, loss | _step_columns(step)) for step in (1000, 4000)]
                for test in [*TESTS, "targets"]:
                    curve = accuracy(name, task, test, seed)
                    if test != "targets":
                        in_training = columns | {"prompt_set": f"{task}-small-{test}-few"}
                        values += [
                            _accuracy_row(task, test, v, in_training | _step_columns(step))
                            for step, v in zip(STEPS, curve, strict=True)
                        ]
                    values.append(_accuracy_row(task, test, curve[-1], columns))
                    values.append(_row(task, test, "accuracy", curve[-1] / 3, columns))
        for name, accuracies in BASELINES.items():
            columns = {"run": name, "contestant": name, "kind": "baseline"}
            values += [_accuracy_row(task, test, v, columns, name != "chance") for test, v in accuracies.items()]
        if task == "bursty-alpha1":
            values += [_published(task, name, test, value) for (name, test), value in PUBLISHED.items()]
        tables.write("values", values, folder / f"{task}.values.parquet", {})
    return folder


def _step_columns(step: int) -> dict[str, object]:
    return {"axis": "train_step", "axis_value": float(step)}


def _row(task: str, test: str | None, metric: str, value: float, columns: dict[str, object]) -> dict[str, object]:
    row = {
        "task": task,
        "family": "bursty",
        "data": "glyphs=procedural",
        "preset": "small",
        "shift": "none",
        "evaluator": test,
        "n_related": 0,
        "metric": metric,
        "value": value,
        "n_episodes": EPISODES,
        "normaliser": 1.0,
        "status": "ok",
        "prompt_set": f"{task}-small-{'none' if test == 'targets' else test}-0" if test else None,
        "card": "c0ffee",
        "version": __version__,
        **columns,
    }
    return complete_row(row)


def _accuracy_row(
    task: str, test: str, value: float, columns: dict[str, object], has_interval: bool = True
) -> dict[str, object]:
    ends = {"low": max(value - 0.04, 0.0), "high": min(value + 0.04, 1.0)} if has_interval else {}
    return _row(task, test, "accuracy_within_choices", value, columns | ends)


def _published(task: str, name: str, test: str, value: float) -> dict[str, object]:
    columns = {
        "run": f"published-{name}",
        "contestant": name,
        "kind": "published",
        "preset": "paper",
        "n_episodes": None,
        "n_related": None,
        "normaliser": None,
        "prompt_set": None,
        "data": "glyphs=omniglot",
        "reason": "CoQE, table 2; printed",
    }
    return _row(task, test, "accuracy_within_choices", value, columns)
