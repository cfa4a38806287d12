"""`iclbench lm demo-model OUT`: train a small language model, for tests without pretrained weights."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from iclbench.cli.options import Threads, set_up_torch

# Numbers of queries and demonstrations, which are large enough to show that the model learns in context.
_EPISODES, _SHOTS = 100, 5


def command(
    out: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of weights and training data.")] = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Maximum number of training steps.", show_default="4000")
    ] = None,
    threads: Threads = 1,
) -> None:
    """Train a small language model on letters in a few minutes, to try all commands without pretrained weights."""
    set_up_torch("cpu", threads)
    from iclbench.cli.terminal import out as stdout
    from iclbench.cli.terminal import print_table, step_bar
    from iclbench.language.demo_model import STEPS, TASKS, train
    from iclbench.language.models.loading import quiet_logs

    steps = steps or STEPS
    with quiet_logs(), step_bar(f"train {out.name}", steps) as update:
        model = train(out, seed, steps, lambda step, loss: update(step, f"loss {loss:.3f}"))
    columns = ["task", "no demonstrations", f"{_SHOTS} demonstrations"]
    print_table("accuracy", columns, _accuracies(model.path, list(TASKS)), (1, 2))
    stdout.print(f"{model.path}: {model.parameters / 1000:.0f} thousand parameters, {model.steps} steps")
    stdout.print(
        f"next: iclbench lm eval --model {model.path} --tasks algorithmic --method deep-thinking", soft_wrap=True
    )


def _accuracies(folder: Path, names: list[str]) -> list[list[str]]:
    """Load the saved model like any other model, and return rows with its accuracy on a few queries of each task."""
    from iclbench import tables
    from iclbench.cli.terminal import step_bar
    from iclbench.core.context import Context
    from iclbench.deep_thinking.methods import method
    from iclbench.language.evaluate import evaluate_model
    from iclbench.language.models.model import load
    from iclbench.language.tasks.selection import language_tasks

    model, tasks = load(str(folder)), language_tasks(names)
    with TemporaryDirectory() as temporary, step_bar("evaluate", 2 * len(tasks)) as update:
        results = Path(temporary)
        options: dict[str, Any] = {"shots": [0, _SHOTS], "episodes": _EPISODES, "controls": False}
        cells = evaluate_model(Context(results), model, tasks, method("icl"), **options)
        for done, cell in enumerate(cells, 1):
            update(done, cell.prompts.id)
        values = tables.read_all("values", results / "tables")
    rows = values[values["metric"].eq("accuracy") & values["prompt_set"].notna()]
    accuracies = {(row["task"], row["n_context"]): row["value"] for _, row in rows.iterrows()}
    return [[task.name, *(f"{accuracies[task.name, shots]:.2f}" for shots in (0, _SHOTS))] for task in tasks]
