"""`iclbench lm tasks`: what language models can be asked, and whether its data are here."""

from __future__ import annotations

import json as json_module
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import typer

from iclbench.cli.terminal import echo, out, say, table
from iclbench.config.cards import names
from iclbench.config.registry import canonical
from iclbench.core.errors import DataError, UsageError
from iclbench.language.tasks.cards import LanguageTask, load_suite, shipped_tasks, suites
from iclbench.language.tasks.chosen import language_tasks

_LEFT_OUT = "left out unless named"


def tasks(
    name: list[str] | None, prompt: bool, shots: int | None, seed: int, data_dir: Path | None, json: bool
) -> None:
    """List the tasks of language models, with the number of examples or the file that is missing."""
    if shots is not None and not prompt:
        raise UsageError("--shots goes with --prompt: iclbench lm tasks to-upper --prompt --shots 2")
    if prompt:
        _print_prompt(language_tasks(name or []), shots, seed, data_dir)
        return
    found = [_row(task, data_dir) for task in (language_tasks(name) if name else shipped_tasks())]
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return
    _print(found if name else _folded(found), together=not name)


def _print_prompt(tasks: list[LanguageTask], shots: int | None, seed: int, data_dir: Path | None) -> None:
    """The first prompt of the task, and on stderr what would follow it."""
    from iclbench.language.prompting.prompts import LanguagePrompts
    from iclbench.language.prompting.text import prompt

    if len(tasks) != 1:
        raise UsageError(f"--prompt is of one task, these are {len(tasks)}: iclbench lm tasks to-upper --prompt")
    task = tasks[0]
    prompts = LanguagePrompts(task, task.card.shots if shots is None else shots, 1, seed=seed, data_dir=data_dir)
    episode = prompts.drawn[0]
    candidates = episode.candidates or (episode.query.y,)
    written = prompt(task.card, episode.demonstrations, episode.query.x, candidates)
    echo(written.text)
    # Texts may hold square brackets.

    choice = f" of {', '.join(map(repr, written.answers))}" if episode.candidates else ""
    say(f"right answer: {written.answers[candidates.index(episode.query.y)]!r}{choice}")


def _row(task: LanguageTask, data_dir: Path | None) -> dict[str, object]:
    """What there is to say of one task; `missing` is empty where its data can be read."""
    card = task.card
    row: dict[str, object] = {
        "task": task.name,
        "family": task.family,
        "shots": card.shots,
        "answers": card.answers,
        "demonstrations": card.demonstrations,
        "summary": card.summary,
        "left_out": task.left_out,
        "card": task.name.removesuffix(f"-{canonical(task.subset)}") if task.subset else task.name,
    }
    try:
        pool = task.pool(data_dir)
    except DataError as error:
        return row | {"examples": None, "missing": str(error)}
    return row | {"examples": len(pool.queries), "missing": ""}


def _folded(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The subsets of one card in one line."""
    by_card: dict[object, list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        by_card[row["card"]].append(row)
    folded = []
    for card, own in by_card.items():
        if len(own) == 1:
            folded += own
            continue
        asked = [row for row in own if not row["left_out"]]
        here = [int(str(row["examples"])) for row in asked if row["examples"] is not None]
        without = next((row["missing"] for row in asked if row["missing"]), "")
        about = f"{len(asked)} tasks" + (f" ({len(own) - len(asked)} left out)" if len(asked) < len(own) else "")
        folded.append(
            own[0]
            | {
                "task": card,
                "family": about,
                "examples": sum(here) if here else None,
                "missing": without,
                "left_out": "",
            }
        )
    return folded


def _print(rows: list[dict[str, object]], together: bool) -> None:
    """A table; below it what is missing, and with `together` the names that several tasks have."""
    columns = ["task", "family", "shots", "answers", "examples", "summary"]
    lines = [[str(row[c] if row[c] is not None else "-") for c in columns] for row in rows]
    table("", columns, lines, (2, 4))
    _reasons("no data", [(str(row["task"]), str(row["missing"])) for row in rows])
    _reasons(_LEFT_OUT, [(str(row["task"]), str(row["left_out"])) for row in rows])
    if together:
        _print_together()


def _print_together() -> None:
    """Names of suites and families, and the reasons why subsets are left out."""
    shipped = names("tasks/language/suites")
    lines = []
    for name, members in sorted(suites().items(), key=lambda item: (item[0] not in shipped, item[0])):
        says = load_suite(name)[1].summary if name in shipped else " ".join(members[:4]) + " ..." * (len(members) > 4)
        lines.append([name, "suite" if name in shipped else "family", str(len(members)), says])
    out.print()
    table("", ["together", "is a", "tasks", "summary"], lines, (2,))
    _reasons(_LEFT_OUT, [(task.name, task.left_out) for task in shipped_tasks()])


def _reasons(about: str, given: Iterable[tuple[str, str]]) -> None:
    """A line for every reason, with the names that it was given for; none for an empty one."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for each, reason in given:
        by_reason[reason].append(each)
    for reason, named in by_reason.items():
        if reason:
            out.print(f"{about}: {', '.join(named)}: {reason}")
