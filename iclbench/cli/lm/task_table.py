"""Print the table of `iclbench lm tasks`, or a single prompt of a task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from iclbench.cli.terminal import echo, out, print_table, say
from iclbench.config.cards import card_names
from iclbench.core.errors import DataError, UsageError
from iclbench.core.formats import canonical
from iclbench.language.tasks.cards import LanguageTask, load_suite, shipped_tasks, task_groups

_EXCLUDED_LABEL = "excluded unless named"


def print_prompt(tasks: list[LanguageTask], shots: int | None, seed: int, data_dir: Path | None) -> None:
    """Print the first prompt of the task, and the correct answer on stderr."""
    from iclbench.language.prompting.prompts import LanguagePrompts
    from iclbench.language.prompting.text import prompt

    if len(tasks) != 1:
        raise UsageError(
            f"--prompt needs one task, got {len(tasks)}: iclbench lm tasks to-upper --prompt", code="bad-value"
        )
    task = tasks[0]
    prompts = LanguagePrompts(task, task.card.shots if shots is None else shots, 1, seed=seed, data_dir=data_dir)
    episode = prompts.drawn_episodes[0]
    candidates = episode.candidates or (episode.query.y,)
    rendered_prompt = prompt(task.card, episode.demonstrations, episode.query.x, candidates)
    echo(rendered_prompt.text)
    choice = f" of {', '.join(map(repr, rendered_prompt.answers))}" if episode.candidates else ""
    say(f"correct answer: {rendered_prompt.answers[candidates.index(episode.query.y)]!r}{choice}")


def row_of(task: LanguageTask, data_dir: Path | None) -> dict[str, object]:
    """Return one task as a row of the table. `missing` is empty if the task's data can be read."""
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


def folded_by_card(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Merge the rows of all subsets of a card into one row."""
    by_card: dict[object, list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        by_card[row["card"]].append(row)
    folded_rows = []
    for card, subsets in by_card.items():
        if len(subsets) == 1:
            folded_rows += subsets
            continue
        included_rows = [row for row in subsets if not row["left_out"]]
        examples = [int(str(row["examples"])) for row in included_rows if row["examples"] is not None]
        missing = next((row["missing"] for row in included_rows if row["missing"]), "")
        excluded_count = len(subsets) - len(included_rows)
        size = f"{len(included_rows)} tasks" + (f" ({excluded_count} excluded)" if excluded_count else "")
        folded_rows.append(
            subsets[0]
            | {
                "task": card,
                "family": size,
                "examples": sum(examples) if examples else None,
                "missing": missing,
                "left_out": "",
            }
        )
    return folded_rows


def print_tasks(rows: list[dict[str, object]], with_groups: bool = False) -> None:
    """Print the table of tasks, the reasons for missing data and exclusions, and optionally the suites and families."""
    columns = ["task", "family", "shots", "answers", "examples", "summary"]
    lines = [[str(row[c] if row[c] is not None else "-") for c in columns] for row in rows]
    print_table("", columns, lines, (2, 4))
    _print_reasons("no data", [(str(row["task"]), str(row["missing"])) for row in rows])
    _print_reasons(_EXCLUDED_LABEL, [(str(row["task"]), str(row["left_out"])) for row in rows])
    if with_groups:
        _print_groups()


def _print_groups() -> None:
    """Print the suites and families, and the reasons for excluded subsets."""
    shipped_suites = card_names("tasks/language/suites")
    lines = []
    for name, members in sorted(task_groups().items(), key=lambda item: (item[0] not in shipped_suites, item[0])):
        summary = (
            load_suite(name)[1].summary
            if name in shipped_suites
            else " ".join(members[:4]) + " ..." * (len(members) > 4)
        )
        lines.append([name, "suite" if name in shipped_suites else "family", str(len(members)), summary])
    out.print()
    print_table("", ["group", "kind", "tasks", "summary"], lines, (2,))
    _print_reasons(_EXCLUDED_LABEL, [(task.name, task.left_out) for task in shipped_tasks()])


def _print_reasons(label: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print each non-empty reason with the names to which it applies."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in pairs:
        by_reason[reason].append(name)
    for reason, names_of_reason in by_reason.items():
        if reason:
            out.print(f"{label}: {', '.join(names_of_reason)}: {reason}")
