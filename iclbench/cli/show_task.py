"""The output of `iclbench show TASK`: the sampled process, its sizes, and its baselines and oracles on one screen.

All values come from the card, so the family and torch are not imported.
"""

from __future__ import annotations

import shlex
from typing import Any

from iclbench.cli.terminal import out, print_table
from iclbench.core.formats import assignments, count, number
from iclbench.registry import FAMILIES

# Maximum number of printed published results, so that the output fits on one screen.
_MAX_PUBLISHED = 8
_QUESTIONS = {
    "next": "the next output after each example, or the next element or label of a stream (question next)",
    "targets": "several outputs from one context (question targets)",
}


def print_task(values: dict[str, Any], typed_name: str) -> None:
    """Print one task.

    Args:
        values: the values of the card. The parameters of the card are repeated in each preset.
        typed_name: the name or path that the user typed.
    """
    family, presets = values["family"], values["presets"]
    parameters = [preset["parameters"] for preset in presets.values()]
    shared_parameters = {
        key: value
        for key, value in parameters[0].items()
        if all(preset_parameters.get(key) == value for preset_parameters in parameters)
    }
    context_targets = "; in training also the context points" if values.get("context_targets") else ""
    article = "an" if values["head"][0] in "aeiou" else "a"
    properties = [
        ["summary", values["summary"]],
        ["family", ": ".join(filter(None, (family, FAMILIES.entry(family).summary)))],
        ["parameters", assignments(shared_parameters)],
        ["predicts", f"{_QUESTIONS[values['question']]}, with {article} {values['head']} head{context_targets}"],
        ["baselines", ", ".join(values["baselines"])],
        ["oracles", ", ".join(values["oracles"]) or "none"],
        ["shifts", ", ".join(values["shifts"]) or "none on the card"],
        ["tests", ", ".join(values["evaluators"])],
        ["solutions", ", ".join(values["solutions"])],
        ["source", values["source"]],
    ]
    print_table("", ["task", values["task"]], [row for row in properties if row[1]])
    out.print()
    columns = ["preset", "examples", "episodes", "steps", "batch", "rate", "budget", "parameters"]
    rows = [_preset_cells(name, preset, shared_parameters) for name, preset in presets.items()]
    end = len(columns) if any(row[-1] for row in rows) else -1
    print_table("", columns[:end], [row[:end] for row in rows], range(1, 7))
    if values["published"]:
        out.print()
        _print_published(values["published"])
    task = shlex.quote(typed_name) if typed_name.endswith(".toml") else values["task"]
    hint = f"the card: iclbench show {task} --card; all values and defaults: --json"
    out.print(f"\n{hint}; train: iclbench train {task} gpt2")


def _preset_cells(name: str, preset: dict[str, Any], shared_parameters: dict[str, Any]) -> list[str]:
    train = preset["train"]
    changed_parameters = {key: value for key, value in preset["parameters"].items() if key not in shared_parameters}
    sizes = (preset["points"], preset["episodes"], train["steps"], train["batch"])
    points, episodes, steps, batch = (f"{size:,}" for size in sizes)
    budget = count(preset["budget"]) if preset.get("budget") else "published"
    return [name, points, episodes, steps, batch, f"{train['lr']:g}", budget, assignments(changed_parameters)]


def _print_published(numbers: list[dict[str, Any]]) -> None:
    condition_keys = ("shift", "evaluator", "n_context", "n_related")
    rows = []
    for entry in numbers[:_MAX_PUBLISHED]:
        conditions = [
            f"{key.removeprefix('n_')} {entry[key]}" for key in condition_keys if entry.get(key) not in (None, "none")
        ]
        value = number(entry["value"])
        rows.append([entry["contestant"], entry["preset"], entry["metric"], ", ".join(conditions), value])
    print_table("published", ["contestant", "preset", "metric", "at", "value"], rows, [4])
    if len(numbers) > _MAX_PUBLISHED:
        out.print(f"and {len(numbers) - _MAX_PUBLISHED} more (--json lists all)")
    for source, data in dict.fromkeys((entry["source"], assignments(entry.get("data", {}))) for entry in numbers):
        out.print(f"from {source}" + (f", for {data}" if data else ""))
