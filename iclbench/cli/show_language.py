"""What `iclbench show` knows of language models: their tasks, suites of them, and grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iclbench.config.cards import names, read_toml
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.language.tasks.cards import load_language_card, load_suite, shipped_tasks, tasks_of
from iclbench.language.tasks.selection import language_tasks
from iclbench.sweep.language_grids import grid_tasks, is_language_grid, load_language_grid


def known() -> list[str]:
    """The names of all cards of language models but the grids."""
    return [*names("tasks/language"), *names("tasks/language/suites")]


def values_of(name: str) -> dict[str, Any] | None:
    """The grid, task or suite of this name, or at this path, with every value; None: there is none of language models.

    All tasks of a grid or a suite are resolved first, so one that is shown can be evaluated.
    """
    if is_language_grid(name):
        grid, of_models = load_language_grid(name)
        tasks = [task.name for task in grid_tasks(name)]
        plain = of_models.model_dump(mode="json", exclude_unset=True)
        return {"grid": grid, "hash": content_hash(of_models), **plain, "tasks_in_full": tasks}
    short = canonical(name)
    if short in names("tasks/language") or (name.endswith(".toml") and "template" in read_toml(Path(name))):
        task, card = load_language_card(name)
        values = {"language_task": task, "hash": content_hash(card), **card.model_dump(mode="json", exclude_none=True)}
        return values | ({"tasks": [each.name for each in tasks_of(task, card)]} if card.subsets else {})
    of_subset = {task.name: task for task in shipped_tasks() if task.subset}.get(short)
    if of_subset is not None:
        about = {"language_task": short, "subset": of_subset.subset, "hash": of_subset.hash}
        card_values = of_subset.card.model_dump(mode="json", exclude={"subsets", "left_out", "published"})
        return about | card_values | {"family": of_subset.family}
    if short in names("tasks/language/suites"):
        suite, suite_card = load_suite(name)
        language_tasks(suite_card.tasks)
        return {
            "suite": suite,
            "hash": content_hash(suite_card),
            **suite_card.model_dump(mode="json", exclude_none=True),
        }
    return None
