"""Selection of language tasks by the names or paths that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.language.tasks.cards import LanguageTask, load_language_card, shipped_tasks, task_groups, tasks_of
from iclbench.language.tasks.user_files import task_from_file


def language_tasks(entries: Sequence[str]) -> list[LanguageTask]:
    """Return the selected tasks in the given order, without duplicates.

    Args:
        entries: names of tasks, of cards with subsets, of families or of suites, or paths of cards (`.toml`) or data
            files (`.json`, `.jsonl`). An entry may contain several names or paths, separated by commas.

    Raises:
        UnknownNameError: a name is unknown.
        UsageError: a path is not a card or a data file, or two files define tasks with the same name.
    """
    by_name = {task.name: task for task in shipped_tasks()}
    groups = task_groups()
    selected: dict[str, LanguageTask] = {}
    for name in (item.strip() for entry in entries for item in entry.split(",") if item.strip()):
        if name.endswith(".toml"):
            card = load_language_card(name)
            matches = [task for task in tasks_of(*card, Path(name).parent) if not task.left_out]
        elif name.endswith((".json", ".jsonl")):
            matches = [task_from_file(Path(name))]
        elif canonical(name) in by_name:
            matches = [by_name[canonical(name)]]
        elif canonical(name) in groups:
            matches = [by_name[task] for task in groups[canonical(name)]]
        elif "/" in name or Path(name).is_file():
            raise UsageError(
                f"'{name}' is not a task; give a card (.toml), pairs (.json) or labelled texts (.jsonl)",
                code="bad-value",
            )
        else:
            raise UnknownNameError("language task", name, [*by_name, *groups], hint="(see iclbench lm tasks)")
        for task in matches:
            if selected.setdefault(task.name, task) != task:
                raise UsageError(
                    f"{name} defines task '{task.name}', which another file defines as well; rename one of them",
                    code="duplicate",
                )
    return list(selected.values())
