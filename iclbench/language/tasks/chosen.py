"""The tasks that a user names: shipped ones, families, suites, cards and data of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.language.tasks.cards import LanguageTask, load_language_card, shipped_tasks, suites, tasks_of
from iclbench.language.tasks.own import own_task


def language_tasks(names_: Sequence[str]) -> list[LanguageTask]:
    """The tasks of these names, each once, in this order: names of tasks, of cards with subsets, of families, of
    suites, with commas between them or not; paths to cards (`.toml`) and to own data (`.json`, `.jsonl`).

    Raises:
        UnknownNameError: nothing has that name.
        UsageError: it is a path to something else, or two different files make tasks of one name.
    """
    by_name = {task.name: task for task in shipped_tasks()}
    groups = suites()
    by_task_name: dict[str, LanguageTask] = {}
    for name in (item.strip() for names in names_ for item in names.split(",") if item.strip()):
        if name.endswith(".toml"):
            card = load_language_card(name)
            matches = [task for task in tasks_of(*card, Path(name).parent) if not task.left_out]
        elif name.endswith((".json", ".jsonl")):
            matches = [own_task(Path(name))]
        elif canonical(name) in by_name:
            matches = [by_name[canonical(name)]]
        elif canonical(name) in groups:
            matches = [by_name[task] for task in groups[canonical(name)]]
        elif "/" in name or Path(name).is_file():
            raise UsageError(f"'{name}' is no task; own data are pairs in a .json or labelled texts in a .jsonl file")
        else:
            raise UnknownNameError("language task", name, [*by_name, *groups], hint="(see iclbench lm tasks)")
        for task in matches:
            if by_task_name.setdefault(task.name, task) != task:
                raise UsageError(f"two different tasks are called '{task.name}': {name} and one before it; rename one")
    return list(by_task_name.values())
