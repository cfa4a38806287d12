"""The values that `iclbench show` prints for language-model tasks, suites and grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iclbench.config.cards import card_names, read_toml
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.language.tasks.cards import load_language_card, load_suite, shipped_tasks, tasks_of
from iclbench.language.tasks.selection import language_tasks
from iclbench.sweep.language_grids import grid_tasks, is_language_grid, load_language_grid


def language_card_names() -> list[str]:
    """Return the names of all language-model cards except grids."""
    return [*card_names("tasks/language"), *card_names("tasks/language/suites")]


def values_of(name: str) -> dict[str, Any] | None:
    """Return all values of the language-model grid, task or suite with this name or path, or None without a match.

    All tasks of a grid or a suite are resolved, so that errors in any of them are reported.
    """
    if is_language_grid(name):
        grid, card = load_language_grid(name)
        tasks = [task.name for task in grid_tasks(name)]
        card_values = card.model_dump(mode="json", exclude_unset=True)
        return {"grid": grid, "hash": content_hash(card), **card_values, "tasks_in_full": tasks}
    canonical_name = canonical(name)
    if canonical_name in card_names("tasks/language") or (
        name.endswith(".toml") and "template" in read_toml(Path(name))
    ):
        task, task_card = load_language_card(name)
        card_values = task_card.model_dump(mode="json", exclude_none=True)
        values = {"language_task": task, "hash": content_hash(task_card), **card_values}
        return values | (
            {"tasks": [language_task.name for language_task in tasks_of(task, task_card)]} if task_card.subsets else {}
        )
    subset_task = {task.name: task for task in shipped_tasks() if task.subset}.get(canonical_name)
    if subset_task is not None:
        values = {"language_task": canonical_name, "subset": subset_task.subset, "hash": subset_task.hash}
        card_values = subset_task.card.model_dump(mode="json", exclude={"subsets", "left_out", "published"})
        return values | card_values | {"family": subset_task.family}
    if canonical_name in card_names("tasks/language/suites"):
        suite, suite_card = load_suite(name)
        language_tasks(suite_card.tasks)
        return {
            "suite": suite,
            "hash": content_hash(suite_card),
            **suite_card.model_dump(mode="json", exclude_none=True),
        }
    return None
