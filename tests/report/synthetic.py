"""A synthetic results folder with failed runs, shifts, oracles and published numbers."""

from pathlib import Path

import numpy as np
import pandas as pd

from iclbench import __version__, tables
from tests.tables.rows import complete_row

N, D, EPISODES = 20, 5, 64
BASELINES = ["zero", "mean", "least-squares", "ridge", "lasso-1e-2", "knn-3", "averaging", "xgboost"]
BACKBONES = {"gpt2": [0, 1, 2], "mamba": [0]}
TASKS = {"linear": "linear", "sparse-linear": "sparse_linear", "decision-tree": "decision_tree"}
REASON = "OutOfMemoryError: 9.1 GiB requested, <7 GiB> free & no swap"
SHIFTS = ["none", "orthants", "input-scale-2", "noisy", "points-80"]


def mean_curve(contestant: str, task: str, shift: str, n: np.ndarray, trained: int = N) -> np.ndarray:
    """Return a plausible learning curve of the normalised error."""
    needed_examples = {"linear": D, "sparse-linear": 3, "decision-tree": 40}[task]
    floor = {"zero": 1.0, "mean": 1.0, "averaging": 0.4, "knn-3": 0.45, "xgboost": 0.35}
    level = {"orthants": 1.3, "input-scale-2": 2.0, "noisy": 1.2}.get(shift, 1.0)
    if contestant == "zero":
        return np.ones_like(n, dtype=float) * level
    if contestant in ("least-squares", "ridge", "oracle-bayes"):
        spike = 0.0 if contestant != "least-squares" else 2.0 * np.exp(-((n - needed_examples) ** 2))
        return level * np.maximum(1 - n / needed_examples, 1e-7) + spike
    if contestant in floor:
        f = floor[contestant]
        return level * (
            f + (1 - f) * np.exp(-n / 8) + (0.3 * np.exp(-n / 3) * (n > 0) if contestant != "xgboost" else 0)
        )
    if contestant == "lasso-1e-2":
        return level * np.maximum(np.exp(-n / (0.5 * needed_examples)), 2e-3)
    rate = {"gpt2": 0.55, "mamba": 0.7}[contestant] * needed_examples
    curve = np.exp(-n / rate) + 0.012
    return level * (curve + 0.02 * np.maximum(n - trained, 0) ** 1.2 * (contestant == "gpt2") / 10)


def write(folder: Path) -> Path:
    """Write the folder and return it."""
    for task in TASKS:
        values: list[dict[str, object]] = []
        costs: list[dict[str, object]] = []
        for contestant, kind, seed in _contestants(task):
            run = contestant if seed is None else f"{task}-{contestant}-small-s{seed}"
            for shift in SHIFTS:
                if shift == "noisy" and contestant == "mamba":
                    values.append(
                        _row(
                            task,
                            contestant,
                            kind,
                            run,
                            seed,
                            shift,
                            metric="squared_error",
                            value=None,
                            status="failed",
                            reason=REASON,
                        )
                    )
                    continue
                curve, errors = _curve(task, contestant, kind, run, seed, shift)
                values += curve
                if shift == "none":
                    tables.write("errors", errors, folder / "tables" / f"{task}-{shift}" / f"{run}.errors.parquet", {})
            if kind == "backbone":
                values += _training(task, contestant, run, seed)
            costs += _costs(task, contestant, kind, run)
        values += _published(task)
        tables.write("values", values, folder / "tables" / f"{task}.values.parquet", {"task": task})
        tables.write("costs", costs, folder / "tables" / f"{task}.costs.parquet", {"task": task})
    return folder


def _contestants(task: str) -> list[tuple[str, str, int | None]]:
    """Return name, kind and seed of each contestant on a task."""
    contestants: list[tuple[str, str, int | None]] = [(name, "baseline", None) for name in BASELINES]
    contestants += [
        (name, "backbone", seed)
        for name, seeds in BACKBONES.items()
        for seed in seeds
        if (name, task) != ("mamba", "decision-tree")
    ]
    return contestants + ([("oracle-bayes", "oracle", None)] if task != "decision-tree" else [])


def _row(
    task: str, contestant: str, kind: str, run: str, seed: int | None, shift: str, **columns: object
) -> dict[str, object]:
    row = {
        "run": run,
        "task": task,
        "family": TASKS[task],
        "contestant": contestant,
        "kind": kind,
        "preset": "small",
        "seed": seed,
        "shift": shift,
        "evaluator": "next",
        "n_episodes": EPISODES,
        "normaliser": float(D),
        "status": "ok",
        "prompt_set": f"{task}-small-{shift}-0",
        "card": f"c0ffee{len(task):06d}",
        "version": __version__,
        **columns,
    }
    return complete_row(row)


def _curve(
    task: str, contestant: str, kind: str, run: str, seed: int | None, shift: str
) -> tuple[list[dict[str, object]], pd.DataFrame]:
    last = 80 if shift == "points-80" else N
    n = np.arange(last + 1)
    if contestant == "xgboost":
        n = np.unique(np.r_[0, np.geomspace(1, last, 8).round().astype(int)])
    # Episodes are equally difficult for all contestants, so that paired intervals are narrower than unpaired ones.
    difficulty = np.random.default_rng([len(task), len(shift)]).gamma(2.0, 0.5, (EPISODES, 1))
    noise = np.random.default_rng(abs(hash_of(f"{task}{run}{shift}"))).gamma(20.0, 0.05, (EPISODES, len(n)))
    per_episode = mean_curve(contestant, task, shift, n) * difficulty * noise
    spread = 1.96 * per_episode.std(axis=0, ddof=1) / np.sqrt(EPISODES)
    mean = per_episode.mean(axis=0)
    rows = [
        _row(
            task,
            contestant,
            kind,
            run,
            seed,
            shift,
            metric="squared_error",
            n_context=int(k),
            value=float(m),
            low=max(float(m - s), 0.0),
            high=float(m + s),
        )
        for k, m, s in zip(n, mean, spread, strict=True)
    ]
    auc = np.trapezoid(per_episode, n, axis=1) / last
    low, high = auc.mean() - 0.25 * auc.std(), auc.mean() + 0.25 * auc.std()
    best = mean_curve("ridge" if task != "decision-tree" else "lasso-1e-2", task, shift, np.arange(last + 1)).mean()
    score = (auc.mean() - 1.0) / (best - 1.0)
    rows.append(
        _row(task, contestant, kind, run, seed, shift, metric="auc", value=float(auc.mean()), low=low, high=high)
    )
    rows.append(
        _row(
            task,
            contestant,
            kind,
            run,
            seed,
            shift,
            metric="score",
            value=float(score),
            low=float(score - 0.03),
            high=float(score + 0.03),
        )
    )
    errors = pd.DataFrame(
        {
            "run": run,
            "prompt_set": f"{task}-small-{shift}-0",
            "metric": "squared_error",
            "n_context": np.tile(n, EPISODES),
            "episode": np.repeat(np.arange(EPISODES), len(n)),
            "value": per_episode.ravel(),
        }
    )
    return rows, errors


def hash_of(name: str) -> int:
    """Return a number that depends only on the name and is the same in all processes."""
    return int.from_bytes(name.encode()[-8:], "little")


def _training(task: str, contestant: str, run: str, seed: int | None) -> list[dict[str, object]]:
    noise = np.random.default_rng(seed).normal(0, 0.05, 41)
    return [
        _row(
            task,
            contestant,
            "backbone",
            run,
            seed,
            "none",
            evaluator="train",
            axis="train_step",
            axis_value=float(100 * i),
            metric="loss",
            value=float(D * (0.12 + 0.88 / (1 + np.exp((i - 15) / 2.5))) * np.exp(noise[i])),
            n_episodes=None,
            prompt_set=None,
        )
        for i in range(41)
    ]


def _costs(task: str, contestant: str, kind: str, run: str) -> list[dict[str, object]]:
    base = {
        "run": run,
        "task": task,
        "contestant": contestant,
        "preset": "small",
        "device": "cpu",
        "threads": 1,
        "version": __version__,
    }
    seconds = 12.0 if contestant == "xgboost" else 0.4
    rows = [
        {**base, "phase": "evaluate", "n_points": n, "metric": "seconds", "value": seconds * n / N} for n in (N, 80)
    ]
    rows.append({**base, "phase": "evaluate", "n_points": N, "metric": "bytes", "value": 180e6 + 1e6 * len(contestant)})
    if kind == "backbone":
        rows += [
            {**base, "phase": "model", "metric": "parameters", "value": 201_345.0},
            {**base, "phase": "model", "metric": "state_bytes", "value": 81_920.0},
            {**base, "phase": "train", "metric": "seconds", "value": 251.3},
            {**base, "phase": "train_step", "n_points": N, "metric": "seconds", "value": 0.0391},
        ]
    return rows


def _published(task: str) -> list[dict[str, object]]:
    if task == "decision-tree":
        return []
    common = {
        "evaluator": "next",
        "metric": "squared_error",
        "prompt_set": None,
        "n_episodes": None,
        "normaliser": None,
    }
    return [
        _row(
            task,
            name,
            "published",
            "published",
            None,
            "none",
            **common | {"n_context": n, "value": value, "preset": preset},
            reason="Garg et al. 2022, Figure 2; read off the plot",
        )
        for name, n, value, preset in (
            ("gpt2", 10, 0.05, "small"),
            ("least-squares", 10, 0.5, "paper"),
            ("gpt2", 10, 0.02, "paper"),
        )
    ]
