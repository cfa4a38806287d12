"""A synthetic results folder of a sweep over many families, with scores, packed errors, costs and cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iclbench import __version__, tables
from tests.tables.rows import complete_row

EPISODES = 48
# Score and cost of each backbone.
BACKBONES = {
    "gpt2": (0.80, 4.0),
    "mamba": (0.79, 3.0),
    "transformer": (0.78, 4.2),
    "s4d": (0.60, 1.0),
    "cnp": (0.35, 0.3),
    "tnp": (0.74, 5.0),
    "icicl-tnp": (0.7, 6.0),
}
# Evaluators of each task. An error of `FLOOR` has score 1, and an error of 1 has score 0.
TASKS = {
    "linear": ("next",),
    "quadratic": ("next",),
    "relu-network": ("next",),
    "decision-tree": ("next",),
    "sparse-linear": ("next",),
    "skewed-linear": ("next",),
    "noisy-linear": ("next",),
    "tabular": ("next",),
    "gp-mixture": ("targets",),
    "bursty": ("icl", "iwl"),
}
FLOOR = 0.2
ONLY_TARGETS = "icicl-tnp"
SKIPPED = "needs related datasets, which this family does not have"
FAILED = "NonFiniteError: loss is nan at step 40"


@dataclass(frozen=True)
class Grid:
    """The folder, and the errors of episodes by (task, evaluator, contestant, seed). For `icl` and `iwl`, these are
    accuracies."""

    folder: Path
    raw: dict[tuple[str, str, str, int], np.ndarray]


def score(raw: np.ndarray | float, evaluator: str) -> np.ndarray | float:
    """Return the score of an error, or of an accuracy for `icl` and `iwl`."""
    return (raw - 0.5) / 0.4 if evaluator in ("icl", "iwl") else (1 - raw) / (1 - FLOOR)


def gap(grid: Grid, task: str, test: str, a: str, b: str) -> tuple[float, float, float]:
    """Return the mean difference in score between `a` and `b` over episodes, and its interval.

    The scores of an episode are averaged over the seeds that both contestants have.
    """
    seeds = [seed for seed in (0, 1) if (task, test, a, seed) in grid.raw and (task, test, b, seed) in grid.raw]
    scores_a, scores_b = (
        np.mean([score(grid.raw[task, test, name, seed], test) for seed in seeds], 0) for name in (a, b)
    )
    gaps = scores_a - scores_b
    # 2.0117 is the 97.5 % quantile of the t distribution with 47 degrees of freedom.
    mean, half = float(gaps.mean()), 2.0117 * float(gaps.std(ddof=1)) / np.sqrt(EPISODES)
    return mean, mean - half, mean + half


def write(folder: Path, preset: str = "grid") -> Grid:
    """Write the folder. One of two seeds of `cnp` failed on `tabular`, and both seeds of `tnp` on `quadratic`."""
    raw: dict[tuple[str, str, str, int], np.ndarray] = {}
    cells: list[dict[str, object]] = []
    for task_index, (task, evaluators) in enumerate(TASKS.items()):
        values: list[dict[str, object]] = []
        errors: list[dict[str, object]] = []
        costs: list[dict[str, object]] = []
        for evaluator_index, evaluator in enumerate(evaluators):
            difficulty = np.random.default_rng([task_index, evaluator_index]).normal(0, 0.15, EPISODES)
            for name, level in (("zero", 1.0), ("knn-3", 0.7), ("ridge", FLOOR)):
                baseline_values = level + 0 * difficulty if evaluator in ("next", "targets") else np.full(EPISODES, 0.5)
                values += _rows(task, evaluator, name, None, baseline_values, preset)
            for backbone_index, (name, (quality, _)) in enumerate(BACKBONES.items()):
                if name == ONLY_TARGETS and evaluator != "targets":
                    continue
                for seed in (0, 1):
                    if (task, name) == ("quadratic", "tnp") or (task, name, seed) == ("tabular", "cnp", 1):
                        continue
                    rng = np.random.default_rng([task_index, backbone_index, seed, evaluator_index])
                    scores = quality + 0.1 * rng.normal() + difficulty + 0.05 * rng.normal(size=EPISODES)
                    by_episode = 0.5 + 0.4 * scores if evaluator in ("icl", "iwl") else 1 - (1 - FLOOR) * scores
                    raw[task, evaluator, name, seed] = by_episode
                    values += _rows(task, evaluator, name, seed, by_episode, preset)
                    errors += _errors(task, evaluator, name, seed, by_episode, preset)
        for name, (_, cost) in BACKBONES.items():
            skipped = name == ONLY_TARGETS and task != "gp-mixture"
            for seed in (0, 1):
                run = f"{task}-{name}-{preset}-s{seed}"
                failed = (task, name) == ("quadratic", "tnp") or (task, name, seed) == ("tabular", "cnp", 1)
                status = "skipped" if skipped else "failed" if failed else "done"
                reason = SKIPPED if skipped else FAILED if failed else None
                cells.append(_cell("train", task, name, run, seed, preset, status, reason, 30.0 * cost))
                if status == "done":
                    cells.append(_cell("evaluate", task, name, run, seed, preset, "done", None, 5.0))
                    costs += _costs(task, name, run, preset, cost * (1 + task_index))
        tables.write("values", values, folder / "tables" / f"{task}.values.parquet", {})
        tables.write("errors", errors, folder / "tables" / f"{task}.errors.parquet", {})
        tables.write("costs", costs, folder / "tables" / f"{task}.costs.parquet", {})
    tables.write("cells", cells, folder / "tables" / "cells.parquet", {})
    return Grid(folder, raw)


def _rows(
    task: str, evaluator: str, name: str, seed: int | None, by_episode: np.ndarray, preset: str
) -> list[dict[str, object]]:
    kind = "backbone" if seed is not None else "oracle" if name == "ridge" else "baseline"
    is_accuracy = evaluator in ("icl", "iwl")
    # For the evaluator `targets`, these rows are squared errors, not log-likelihoods.
    metric = "accuracy_within_choices" if is_accuracy else "squared_error"
    mean, half = float(by_episode.mean()), 1.96 * float(by_episode.std()) / np.sqrt(len(by_episode))
    ends = sorted(float(score(mean + side * half, evaluator)) for side in (-1, 1))
    base = {
        "run": name if seed is None else f"{task}-{name}-{preset}-s{seed}",
        "task": task,
        "family": "linear" if task == "skewed-linear" else task.replace("-", "_"),
        "contestant": name,
        "kind": kind,
        "preset": preset,
        "seed": seed,
        "shift": "none",
        "evaluator": evaluator,
        "n_episodes": EPISODES,
        "status": "ok",
        "prompt_set": f"{task}-{evaluator}",
        "card": "c",
        "version": __version__,
        "n_related": None if evaluator == "next" else 0,
    }
    span = 0.4 if is_accuracy else 1 - FLOOR
    rows = [
        base
        | {
            "metric": "score",
            "value": float(score(mean, evaluator)),
            "low": ends[0],
            "high": ends[1],
            "normaliser": span,
            "reason": f"{metric}: 1 is {'always right' if is_accuracy else 'ridge'}",
        },
        base | {"metric": metric, "value": mean, "low": mean - half, "high": mean + half, "normaliser": 1.0},
    ]
    return [complete_row(row) for row in rows]


def _errors(
    task: str, evaluator: str, name: str, seed: int, by_episode: np.ndarray, preset: str
) -> list[dict[str, object]]:
    metric = "accuracy_within_choices" if evaluator in ("icl", "iwl") else "squared_error"
    sizes = {} if evaluator == "next" else {"n_context": 8, "n_related": 0}
    return [
        {
            "run": f"{task}-{name}-{preset}-s{seed}",
            "prompt_set": f"{task}-{evaluator}",
            "metric": metric,
            "episode": i,
            "value": float(v),
            **sizes,
        }
        for i, v in enumerate(by_episode)
    ]


def _costs(task: str, name: str, run: str, preset: str, cost: float) -> list[dict[str, object]]:
    base = {
        "run": run,
        "task": task,
        "contestant": name,
        "preset": preset,
        "device": "cpu",
        "threads": 1,
        "version": __version__,
    }
    return [
        base | {"phase": "model", "metric": "parameters", "value": 26_000.0 + 10 * len(name)},
        base | {"phase": "train", "metric": "seconds", "value": 10 * cost},
        base | {"phase": "train_step", "n_points": 12, "metric": "flops", "value": 1e8 * cost},
        base | {"phase": "condition", "n_points": 40, "metric": "state_bytes", "value": 1e3 * cost, "n_episodes": 64},
        base | {"phase": "condition", "n_points": 12, "metric": "state_bytes", "value": 1e2 * cost, "n_episodes": 64},
    ]


def _cell(
    kind: str, task: str, name: str, run: str, seed: int, preset: str, status: str, reason: str | None, seconds: float
) -> dict[str, object]:
    columns_if_done = {
        "seconds": seconds,
        "device": "cpu",
        "hardware": "two cores, 8 GiB",
        "threads": 1,
        "libraries": '{"python": "3.12.1", "torch": "2.13.0"}',
    }
    return {
        "cell": f"{kind}-{run}",
        "kind": kind,
        "run": run,
        "task": task,
        "contestant": name,
        "preset": preset,
        "seed": seed,
        "status": status,
        "reason": reason,
        "version": __version__,
        **(columns_if_done if status == "done" else {}),
    }
