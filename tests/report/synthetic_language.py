"""A results folder with invented results of language models.

Three models on eight tasks of three families, ten demonstration sets. `mamba-tiny` has no memory, so that no method is
applied to it; on `list-last` its cell failed. Deep-Thinking has a small gain on `gpt2-large` and none on `demo-lm`.
"""

import json
from pathlib import Path
from zlib import crc32

import numpy as np

from iclbench import __version__, tables
from tests.tables.rows import complete

EPISODES = 400
SEEDS = range(10)
SHOTS = [0, 1, 2, 4, 8]
MAIN = 4
PASSES = 5
THOUGHT = "+deep-thinking"
REASON = "OutOfMemoryError: <9 GiB> free & no swap"
NASTY = '<script>alert("prompt")</script>'
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
# Whether each model has a memory, and its accuracy without and with many demonstrations.
MODELS = {"demo-lm": (True, 0.2, 0.9), "gpt2-large": (True, 0.1, 0.75), "mamba-tiny": (False, 0.1, 0.55)}
HELPS = {"demo-lm": 0.0, "gpt2-large": 0.04}
PUBLISHED = {"GPT2-Large": 0.653, "GPT2-Large+deep-thinking": 0.857}
ORDERED = "sst2"
# One of two tasks of the suite has other examples than the published mean.
OURS, THEIRS = {"sst5": "pairs=iclbench"}, "pairs=Hendel et al. 2023"
SUITE = {
    "task": "simple",
    "family": "suite",
    "n_context": None,
    "reason": "Deep-Thinking, table 1; printed; mean over sst2, sst5, trec",
    "mean_of": "sst2, sst5, trec",
}


def accuracy(model: str, task: str, shots: int, seed: int, method: str = "", order: int = 0) -> float:
    """The accuracy of a cell, a multiple of 1/400."""
    _, zero, many = MODELS[model]
    _, _, common = TASKS[task]
    floor = max(zero, 0.8 * common)
    value = floor + (many - floor) * (1 - np.exp(-shots / 2)) if shots else floor
    value += 0.02 * np.sin(3.0 * seed + 1.7 * order + len(task)) * (shots > 0)
    value += HELPS.get(model, 0.0) * (method == THOUGHT) + 0.002 * (method == "+repeat-2")
    return round(float(np.clip(value, 0, 1)) * EPISODES) / EPISODES


def prompt_set(task: str, shots: int, shift: str, seed: int, order: int = 0) -> str:
    which = f"{shots}shot-d{seed}" + (f"-o{order}" if order else "")
    return f"{task}-language-{shift}-{which}-q{crc32(repr((task, shots, shift)).encode()):08x}"


def write(folder: Path) -> Path:
    """Write the folder and return it."""
    for task in TASKS:
        rows = [row for model in MODELS for row in _of_model(task, model)] + _majority(task)
        tables.write("values", rows, folder / "tables" / task / "all.values.parquet", {})
        for model in MODELS:
            if not _failed(model, task):
                _write_answers(folder, task, model)
    tables.write("values", _summaries(), folder / "tables" / "summary" / "all.values.parquet", {})
    tables.write("values", _published(), folder / "tables" / "published" / "all.values.parquet", {})
    tables.write("costs", _costs(), folder / "tables" / "all.costs.parquet", {})
    return folder


def rows_of(task: str) -> list[dict[str, object]]:
    """The values of one task, and all published ones."""
    return [row for model in MODELS for row in _of_model(task, model)] + _majority(task) + _published()


def row(task: str, contestant: str, metric: str, value: float | None, **more: object) -> dict[str, object]:
    """A row with all required columns."""
    family, evaluator, _ = TASKS[task]
    row = {
        "run": contestant,
        "task": task,
        "family": family,
        "contestant": contestant,
        "kind": "backbone",
        "preset": "language",
        "data": OURS.get(task),
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
        **more,
    }
    return complete(row)


def _failed(model: str, task: str) -> bool:
    return model == "mamba-tiny" and task == "list-last"


def _cell(task: str, model: str, method: str, shots: int, seed: int, order: int = 0, shift: str = "none") -> list:
    where = {
        "n_context": shots,
        "shift": shift,
        "prompt_set": prompt_set(task, shots, shift, seed, order),
        "axis": "order" if order else "demo_seed",
        "axis_value": float(order or seed),
    }
    name = model + method
    if _failed(model, task):
        return [row(task, name, "accuracy", None, status="failed", reason=REASON, **where)]
    value = accuracy(model, task, shots, seed, method, order)
    if shift != "none":
        value = round((0.5 * value) * EPISODES) / EPISODES
    half = 1.96 * np.sqrt(value * (1 - value) / EPISODES)
    ends = {"low": max(value - half, 0.0), "high": min(value + half, 1.0)}
    found = [
        row(task, name, "accuracy", value, **where, **ends),
        row(task, name, "balanced_accuracy", 0.9 * value, **where),
    ]
    if TASKS[task][1] == "choice":
        others = {"accuracy_per_token": 0.99, "accuracy_per_character": 0.98, "accuracy_per_byte": 0.97}
        found += [row(task, name, metric, by * value, **where) for metric, by in others.items()]
        found.append(row(task, name, "log_likelihood", -1.0 + value, **where))
    else:
        found.append(row(task, name, "accuracy_first_token", min(1.0, value + 0.05), **where | {"n_episodes": 300}))
    if method == THOUGHT:
        found += _passes(task, model, where, value, shots, seed, order)
    return found


def _passes(task: str, model: str, where: dict, end: float, shots: int, seed: int, order: int) -> list:
    start, found = accuracy(model, task, shots, seed, "", order), []
    for t in range(1, PASSES + 1):
        at = where | {"axis": "passes", "axis_value": float(t)}
        value = start + (end - start) * (t - 1) / (PASSES - 1)
        found.append(row(task, model + THOUGHT, "accuracy", value, **at))
        found.append(row(task, model + THOUGHT, "kl_to_icl", 1e-3 * (t - 1) ** 2, **at))
        if t > 1:
            found.append(row(task, model + THOUGHT, "memory_change", 0.01 / t, **at))
        if task == ORDERED:
            found.append(row(task, model + THOUGHT, "accuracy", value - 0.01, **at | {"evaluator": "development"}))
    return found


def _of_model(task: str, model: str) -> list:
    remembers = MODELS[model][0]
    found = _cell(task, model, "", 0, 0)
    for method in ("", THOUGHT, "+repeat-2") if remembers else ("",):
        for shots in SHOTS[1:] if method != "+repeat-2" else [MAIN]:
            for seed in SEEDS:
                found += _cell(task, model, method, shots, seed)
        if method != "+repeat-2":
            for seed in SEEDS:
                found += _cell(task, model, method, MAIN, seed, shift="shuffled-labels")
        if task == ORDERED and method != "+repeat-2":
            for order in range(1, 10):
                found += _cell(task, model, method, MAIN, 0, order)
    return found


def _majority(task: str) -> list:
    """The baseline on every prompt set of the task."""
    every = [(0, "none", 0)] + [(n, "none", s) for n in SHOTS[1:] for s in SEEDS]
    every += [(MAIN, "shuffled-labels", s) for s in SEEDS]
    found = []
    for shots, shift, seed in every:
        where = {
            "kind": "baseline",
            "variant": None,
            "n_context": shots,
            "shift": shift,
            "axis": "demo_seed",
            "axis_value": float(seed),
            "prompt_set": prompt_set(task, shots, shift, seed),
        }
        found.append(row(task, "majority", "accuracy", TASKS[task][2], reason="always 'A'", **where))
        found.append(row(task, "majority", "balanced_accuracy", TASKS[task][2] / 2, **where))
    return found


def _summaries() -> list:
    """Paired gains, and wrong means over seeds, which the report must not use."""
    found = []
    for task in TASKS:
        for model, (remembers, _, _) in MODELS.items():
            if not remembers:
                continue
            for method in (THOUGHT, "+repeat-2"):
                gain = HELPS[model] if method == THOUGHT else 0.002
                ends = {"low": gain - 0.01, "high": gain + 0.01}
                sets = {"mean_of": ", ".join(prompt_set(task, MAIN, "none", seed) for seed in SEEDS)}
                found.append(row(task, model + method, "accuracy_gain", gain, n_context=MAIN, **ends, **sets))
                found.append(row(task, model + method, "accuracy", 0.123, n_context=MAIN))
    return found


def _published() -> list:
    found = []
    for name, value in PUBLISHED.items():
        more = {
            "run": f"published-{name}",
            "kind": "published",
            "variant": None,
            "n_context": MAIN,
            "n_episodes": None,
            "normaliser": None,
            "reason": "Deep-Thinking, table 1; printed",
        }
        found.append(row("sst2", name, "accuracy", value, **more))
        found.append(row("sst2", name, "accuracy", 0.5, **more) | SUITE | {"data": THEIRS})
    return found


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
    found = [
        {
            "run": model,
            "prompt_set": prompts,
            "episode": i,
            "prompt": f"example:{'a' * 300}\n{NASTY} {task} {i}->",
            "target": "A",
            "predicted": "A" if i % 2 else "b",
            "correct": bool(i % 2),
            "candidates": json.dumps(["A", "b"]),
            "scores": json.dumps([-1.0, -2.0]),
        }
        for i in range(20)
    ]
    tables.write("answers", found, folder / "tables" / prompts / f"{model}.answers.parquet", {})
