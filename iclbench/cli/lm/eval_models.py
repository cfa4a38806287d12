"""Evaluates one language model on several tasks under a progress bar, and says what failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iclbench.cli.terminal import say, step_bar
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.deep_thinking.methods import Method
from iclbench.language.evaluate import evaluate_model as run_evaluation
from iclbench.language.models.model import LanguageModel
from iclbench.language.tasks.cards import LanguageTask

if TYPE_CHECKING:
    from iclbench.evaluation.cells import CellResult


def evaluate_model(
    context: Context,
    model: LanguageModel,
    tasks: Sequence[LanguageTask],
    method: Method,
    cells: list[CellResult],
    asked: dict[str, Any],
) -> int:
    """Evaluate one model under a bar and note its cells; returns how many cells and tasks failed.

    Raises:
        UsageError: none of the tasks can be asked; where some can, the others are named.
    """
    failed, before = 0, len(cells)
    with step_bar(f"{model.name}{method.suffix}", len(tasks)) as update:
        refused: list[tuple[str, UsageError]] = []
        for number, task in enumerate(tasks):
            first = len(cells)
            try:
                for cell in run_evaluation(context, model, [task], method, **asked):
                    cells.append(cell)
                    update(number, f"{cell.prompts.id}: {cell.contestant.name}{' (kept)' if cell.cached else ''}")
            except UsageError as error:
                refused.append((task.name, error))
            else:
                update(number + 1, task.name)
            for line in remarks(task.name, cells[first:]):
                say(line)
            failed += sum(bool(cell.reason) for cell in cells[first:])
    if refused and len(cells) == before:
        raise refused[0][1]
    for name, problem in refused:
        say(f"skipped {name}: {problem}")
    return failed + len(refused)


def remarks(task: str, cells: Sequence[CellResult]) -> list[str]:
    """What is to be said of the cells of one task: a line for every contestant with cells that failed, one for every
    way of finding answers that is not plain."""
    broken: dict[str, list[str]] = {}
    for cell in cells:
        if cell.reason:
            broken.setdefault(cell.contestant.name, []).append(cell.reason)
    lines = [
        f"failed: {contestant} on {task}, {len(reasons)} of its prompt sets: {reasons[0]}"
        for contestant, reasons in broken.items()
    ]
    notes = dict.fromkeys(f"{cell.contestant.name} on {task}: {cell.note}" for cell in cells if cell.note)
    return [*lines, *notes]
