"""A synthetic results folder of language models.

It has three models, eight tasks of three families, and ten sets of demonstrations. `mamba-tiny` has no key-value cache,
so no method applies to it, and its cells of `list-last` failed. Deep-Thinking slightly improves `gpt2-large` and has no
effect on `demo-lm`.
"""

import json
from pathlib import Path
from zlib import crc32

import numpy as np

from iclbench import __version__, tables
from tests.tables.rows import complete_row

EPISODES = 400
SEEDS = range(10)
SHOTS = [0, 1, 2, 4, 8]
MAIN = 4
PASSES = 5
DEEP_THINKING = "+deep-thinking"
REASON = "OutOfMemoryError: <9 GiB> free & no swap"
UNSAFE_PROMPT = '<script>alert("prompt")</script>'
# Family, evaluator, and share of the most frequent answer of each task.
TASKS = {
    "list-first": ("algorithmic", "greedy", 0.06),
    "list-last": ("algorithmic", "greedy", 0.06),
    "next-letter": ("algorithmic", "greedy", 0.05),
    "to-upper": ("algorithmic", "greedy", 0.05),
    "country-capital": ("knowledge", "greedy", 0.02),
    "location-continent": ("knowledge", "greedy", 0.40),
    "sst2": ("sentiment", "choice", 0.51),
    "sst5": ("sentiment", "choice", 0.28),
}
# Whether each model has a key-value cache, and its accuracies without and with many demonstrations.
MODELS = {"demo-lm": (True, 0.2, 0.9), "gpt2-large": (True, 0.1, 0.75), "mamba-tiny": (False, 0.1, 0.55)}
# Gain in accuracy from Deep-Thinking.
GAINS = {"demo-lm": 0.0, "gpt2-large": 0.04}
PUBLISHED = {"GPT2-Large": 0.653, "GPT2-Large+deep-thinking": 0.857}
# The task that has several orders of demonstrations and a development split.
ORDERED_TASK = "sst2"
# Two tasks of the suite are in `TASKS`. For one of them, our examples differ from those behind the published mean.
OUR_DATA, THEIR_DATA = {"sst5": "pairs=iclbench"}, "pairs=Hendel et al. 2023"
SUITE = {
    "task": "simple",
    "family": "suite",
    "n_context": None,
    "reason": "Deep-Thinking, table 1; printed; mean over sst2, sst5, trec",
    "mean_of": "sst2, sst5, trec",
}


def accuracy(model: str, task: str, shots: int, seed: int, method: str = "", order: int = 0) -> float:
    """Return the accuracy of a cell, a multiple of 1/400."""
    _, zero_shot, many_shots = MODELS[model]
    _, _, majority = TASKS[task]
    floor = max(zero_shot, 0.8 * majority)
    value = floor + (many_shots - floor) * (1 - np.exp(-shots / 2)) if shots else floor
    value += 0.02 * np.sin(3.0 * seed + 1.7 * order + len(task)) * (shots > 0)
    value += GAINS.get(model, 0.0) * (method == DEEP_THINKING) + 0.002 * (method == "+repeat-2")
    return round(float(np.clip(value, 0, 1)) * EPISODES) / EPISODES


def prompt_set(task: str, shots: int, shift: str, seed: int, order: int = 0) -> str:
    demonstrations = f"{shots}shot-d{seed}" + (f"-o{order}" if order else "")
    return f"{task}-language-{shift}-{demonstrations}-q{crc32(repr((task, shots, shift)).encode()):08x}"


def write(folder: Path) -> Path:
    """Write the folder and return it."""
    for task in TASKS:
        rows = [row for model in MODELS for row in _model_rows(task, model)] + _majority(task)
        tables.write("values", rows, folder / "tables" / task / "all.values.parquet", {})
        for model in MODELS:
            if not _has_failed(model, task):
                _write_answers(folder, task, model)
    tables.write("values", _summaries(), folder / "tables" / "summary" / "all.values.parquet", {})
    tables.write("values", _published(), folder / "tables" / "published" / "all.values.parquet", {})
    tables.write("costs", _costs(), folder / "tables" / "all.costs.parquet", {})
    return folder


def row(task: str, contestant: str, metric: str, value: float | None, **columns: object) -> dict[str, object]:
    """Return a row of the table `values`, with defaults for columns that are not in `columns`."""
    family, evaluator, _ = TASKS[task]
    row = {
        "run": contestant,
        "task": task,
        "family": family,
        "contestant": contestant,
        "kind": "backbone",
        "preset": "language",
        "data": OUR_DATA.get(task),
        "variant": "ab" * 4,
        "shift": "none",
        "evaluator": evaluator,
        "metric": metric,
        "value": value,
        "n_episodes": EPISODES,
        "normaliser": 1.0,
        "status": "ok",
        "card": "c0ffee",
        "version": __version__,
        **columns,
    }
    return complete_row(row)


def _has_failed(model: str, task: str) -> bool:
    return model == "mamba-tiny" and task == "list-last"


def _cell(task: str, model: str, method: str, shots: int, seed: int, order: int = 0, shift: str = "none") -> list:
    cell = {
        "n_context": shots,
        "shift": shift,
        "prompt_set": prompt_set(task, shots, shift, seed, order),
        "axis": "order" if order else "demo_seed",
        "axis_value": float(order or seed),
    }
    name = model + method
    if _has_failed(model, task):
        return [row(task, name, "accuracy", None, status="failed", reason=REASON, **cell)]
    value = accuracy(model, task, shots, seed, method, order)
    if shift != "none":
        value = round((0.5 * value) * EPISODES) / EPISODES
    half = 1.96 * np.sqrt(value * (1 - value) / EPISODES)
    ends = {"low": max(value - half, 0.0), "high": min(value + half, 1.0)}
    rows = [
        row(task, name, "accuracy", value, **cell, **ends),
        row(task, name, "balanced_accuracy", 0.9 * value, **cell),
    ]
    if TASKS[task][1] == "choice":
        factors = {"accuracy_per_token": 0.99, "accuracy_per_character": 0.98, "accuracy_per_byte": 0.97}
        rows += [row(task, name, metric, factor * value, **cell) for metric, factor in factors.items()]
        rows.append(row(task, name, "log_likelihood", -1.0 + value, **cell))
    else:
        rows.append(row(task, name, "accuracy_first_token", min(1.0, value + 0.05), **cell | {"n_episodes": 300}))
    if method == DEEP_THINKING:
        rows += _passes(task, model, cell, value, shots, seed, order)
    return rows


def _passes(task: str, model: str, cell: dict, final: float, shots: int, seed: int, order: int) -> list:
    """Return rows after each pass. The accuracy changes linearly from that of plain in-context learning to `final`."""
    plain, rows = accuracy(model, task, shots, seed, "", order), []
    for t in range(1, PASSES + 1):
        columns = cell | {"axis": "passes", "axis_value": float(t)}
        value = plain + (final - plain) * (t - 1) / (PASSES - 1)
        rows.append(row(task, model + DEEP_THINKING, "accuracy", value, **columns))
        rows.append(row(task, model + DEEP_THINKING, "kl_to_icl", 1e-3 * (t - 1) ** 2, **columns))
        if t > 1:
            rows.append(row(task, model + DEEP_THINKING, "memory_change", 0.01 / t, **columns))
        if task == ORDERED_TASK:
            columns |= {"evaluator": "development"}
            rows.append(row(task, model + DEEP_THINKING, "accuracy", value - 0.01, **columns))
    return rows


def _model_rows(task: str, model: str) -> list:
    """Return the rows of all cells of a model on a task."""
    has_cache = MODELS[model][0]
    rows = _cell(task, model, "", 0, 0)
    for method in ("", DEEP_THINKING, "+repeat-2") if has_cache else ("",):
        for shots in SHOTS[1:] if method != "+repeat-2" else [MAIN]:
            for seed in SEEDS:
                rows += _cell(task, model, method, shots, seed)
        if method != "+repeat-2":
            for seed in SEEDS:
                rows += _cell(task, model, method, MAIN, seed, shift="shuffled-labels")
        if task == ORDERED_TASK and method != "+repeat-2":
            for order in range(1, 10):
                rows += _cell(task, model, method, MAIN, 0, order)
    return rows


def _majority(task: str) -> list:
    """Return the rows of the majority baseline on all prompt sets of the task."""
    cells = [(0, "none", 0)] + [(n, "none", s) for n in SHOTS[1:] for s in SEEDS]
    cells += [(MAIN, "shuffled-labels", s) for s in SEEDS]
    rows = []
    for shots, shift, seed in cells:
        cell = {
            "kind": "baseline",
            "variant": None,
            "n_context": shots,
            "shift": shift,
            "axis": "demo_seed",
            "axis_value": float(seed),
            "prompt_set": prompt_set(task, shots, shift, seed),
        }
        rows.append(row(task, "majority", "accuracy", TASKS[task][2], reason="always 'A'", **cell))
        rows.append(row(task, "majority", "balanced_accuracy", TASKS[task][2] / 2, **cell))
    return rows


def _summaries() -> list:
    """Return paired gains, and means over seeds.

    The means are wrong on purpose: the report must ignore them and compute means from the cells.
    """
    rows = []
    for task in TASKS:
        for model, (has_cache, _, _) in MODELS.items():
            if not has_cache:
                continue
            for method in (DEEP_THINKING, "+repeat-2"):
                gain = GAINS[model] if method == DEEP_THINKING else 0.002
                ends = {"low": gain - 0.01, "high": gain + 0.01}
                sets = {"mean_of": ", ".join(prompt_set(task, MAIN, "none", seed) for seed in SEEDS)}
                rows.append(row(task, model + method, "accuracy_gain", gain, n_context=MAIN, **ends, **sets))
                rows.append(row(task, model + method, "accuracy", 0.123, n_context=MAIN))
    return rows


def _published() -> list:
    rows = []
    for name, value in PUBLISHED.items():
        columns = {
            "run": f"published-{name}",
            "kind": "published",
            "variant": None,
            "n_context": MAIN,
            "n_episodes": None,
            "normaliser": None,
            "reason": "Deep-Thinking, table 1; printed",
        }
        rows.append(row("sst2", name, "accuracy", value, **columns))
        rows.append(row("sst2", name, "accuracy", 0.5, **columns) | SUITE | {"data": THEIR_DATA})
    return rows


def _costs() -> list:
    return [
        {
            "run": model,
            "task": task,
            "contestant": model,
            "preset": "language",
            "phase": "evaluate",
            "n_points": MAIN,
            "metric": metric,
            "value": value,
            "device": "cpu",
            "threads": 1,
            "n_episodes": None,
            "version": __version__,
        }
        for task in TASKS
        for model in MODELS
        for metric, value in (("seconds", 2.5), ("bytes", 1e7))
    ]


def _write_answers(folder: Path, task: str, model: str) -> None:
    prompts = prompt_set(task, SHOTS[-1], "none", 0)
    rows = [
        {
            "run": model,
            "prompt_set": prompts,
            "episode": i,
            "prompt": f"example:{'a' * 300}\n{UNSAFE_PROMPT} {task} {i}->",
            "target": "A",
            "predicted": "A" if i % 2 else "b",
            "correct": bool(i % 2),
            "candidates": json.dumps(["A", "b"]),
            "scores": json.dumps([-1.0, -2.0]),
        }
        for i in range(20)
    ]
    tables.write("answers", rows, folder / "tables" / prompts / f"{model}.answers.parquet", {})
