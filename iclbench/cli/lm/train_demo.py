"""Trains the demo language model and prints what it has learned."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from iclbench import tables
from iclbench.cli.terminal import out as stdout
from iclbench.cli.terminal import step_bar, table
from iclbench.core.context import Context
from iclbench.deep_thinking.methods import method
from iclbench.language.demo_model import STEPS, TASKS, train
from iclbench.language.evaluate import evaluate_model
from iclbench.language.models.loading import quiet
from iclbench.language.models.model import load
from iclbench.language.tasks.chosen import language_tasks

# Enough to tell learning from guessing.
_EPISODES, _SHOTS = 100, 5


def train_demo(out: Path, seed: int, steps: int | None) -> None:
    """Train the model under a progress bar, save it to `out` and print its accuracies."""
    wanted = steps or STEPS
    with quiet(), step_bar(f"train {out.name}", wanted) as update:
        made = train(out, seed, wanted, lambda step, loss: update(step, f"loss {loss:.3f}"))
    columns = ["task", "no demonstrations", f"{_SHOTS} demonstrations"]
    table("accuracy", columns, _accuracies(made.path, list(TASKS)), (1, 2))
    stdout.print(f"{made.path}: {made.parameters / 1000:.0f} thousand parameters, {made.steps} steps")
    stdout.print(
        f"next: iclbench lm eval --model {made.path} --tasks algorithmic --method deep-thinking", soft_wrap=True
    )


def _accuracies(folder: Path, names: list[str]) -> list[list[str]]:
    """What the saved model answers to a few queries of each task, through the real loader."""
    model, tasks = load(str(folder)), language_tasks(names)
    with TemporaryDirectory() as kept, step_bar("evaluate", 2 * len(tasks)) as update:
        results = Path(kept)
        options: dict[str, Any] = {"shots": [0, _SHOTS], "episodes": _EPISODES, "controls": False}
        cells = evaluate_model(Context(results), model, tasks, method("icl"), **options)
        for done, cell in enumerate(cells, 1):
            update(done, cell.prompts.id)
        values = tables.read_all("values", results / "tables")
    asked = values[values["metric"].eq("accuracy") & values["prompt_set"].notna()]
    found = {(row["task"], row["n_context"]): row["value"] for _, row in asked.iterrows()}
    return [[task.name, *(f"{found[task.name, shots]:.2f}" for shots in (0, _SHOTS))] for task in tasks]
