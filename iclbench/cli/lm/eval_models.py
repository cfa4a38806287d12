"""Evaluate one language model on several tasks, with a progress bar and a report of failures."""

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
    options: dict[str, Any],
) -> int:
    """Evaluate one model and add its cells to `cells`. Return the number of failed cells and tasks.

    Raises:
        UsageError: no task can be evaluated. If only some tasks cannot be evaluated, their errors are printed.
    """
    failed_count, earlier_cells = 0, len(cells)
    with step_bar(f"{model.name}{method.suffix}", len(tasks)) as update:
        refusals: list[tuple[str, UsageError]] = []
        for number, task in enumerate(tasks):
            first_cell = len(cells)
            try:
                for cell in run_evaluation(context, model, [task], method, **options):
                    cells.append(cell)
                    update(number, f"{cell.prompts.id}: {cell.contestant.name}{' (cached)' if cell.cached else ''}")
            except UsageError as error:
                refusals.append((task.name, error))
            else:
                update(number + 1, task.name)
            for line in remarks(task.name, cells[first_cell:]):
                say(line)
            failed_count += sum(bool(cell.reason) for cell in cells[first_cell:])
    if refusals and len(cells) == earlier_cells:
        raise refusals[0][1]
    for name, problem in refusals:
        say(f"skipped {name}: {problem}")
    return failed_count + len(refusals)


def remarks(task: str, cells: Sequence[CellResult]) -> list[str]:
    """Return remarks on the cells of one task: a line for each contestant with failed cells, and each distinct note on
    how answers were obtained."""
    failures: dict[str, list[str]] = {}
    for cell in cells:
        if cell.reason:
            failures.setdefault(cell.contestant.name, []).append(cell.reason)
    lines = [
        f"failed: {contestant} on {task}, {len(reasons)} of its prompt sets: {reasons[0]}"
        for contestant, reasons in failures.items()
    ]
    notes = dict.fromkeys(f"{cell.contestant.name} on {task}: {cell.note}" for cell in cells if cell.note)
    return [*lines, *notes]
