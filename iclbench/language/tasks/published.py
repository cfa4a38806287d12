"""Published numbers on language tasks and suites, as rows of the table `values`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from iclbench import tables
from iclbench.config.cards import card_names
from iclbench.core.formats import assignments, canonical
from iclbench.core.hashing import content_hash
from iclbench.core.version import provenance
from iclbench.language.tasks.cards import PRESET, LanguageCard, LanguageTask, SuiteCard, load_suite
from iclbench.store.runs import write_errors


def write_published(results: Path, tasks: Sequence[LanguageTask]) -> None:
    """Write the published numbers of the cards of these tasks, and of the suites that contain one of these tasks. Each
    card and suite has its own file."""
    for name, family, card in _cards(tasks):
        rows = list(_rows(name, family, card))
        if rows:
            with write_errors(results):
                tables.write("values", rows, results / "tables" / "published" / f"{name}.values.parquet", {})


def _cards(tasks: Sequence[LanguageTask]) -> Iterator[tuple[str, str, LanguageCard | SuiteCard]]:
    """Yield the name, the family and the card of each card and suite of these tasks, without duplicates."""
    yield from {name: (name, task.card.family, task.card) for task in tasks for name in [_card_name(task)]}.values()
    task_names = {task.name for task in tasks}
    for name in card_names("tasks/language/suites"):
        suite = load_suite(name)[1]
        if task_names & {canonical(task) for task in suite.tasks}:
            yield name, "suite", suite


def _card_name(task: LanguageTask) -> str:
    return task.name.removesuffix(f"-{canonical(task.subset)}") if task.subset else task.name


def _rows(name: str, family: str, card: LanguageCard | SuiteCard) -> Iterator[dict[str, object]]:
    language_card = card if isinstance(card, LanguageCard) else None
    task_list = None if isinstance(card, LanguageCard) else ", ".join(map(canonical, card.tasks))
    for p in card.published:
        yield {
            "run": f"published-{p.contestant}",
            "task": name,
            "family": family,
            "contestant": p.contestant,
            "model": p.contestant,
            "kind": "published",
            "preset": PRESET,
            "shift": p.shift,
            "distribution": p.shift,
            "evaluator": p.evaluator or (language_card.answers if language_card else "greedy"),
            "n_context": language_card.shots if p.n_context is None and language_card else p.n_context,
            "metric": p.metric,
            "value": p.value,
            "low": p.low,
            "high": p.high,
            "data": assignments(p.data) or None,
            "status": "ok",
            "reason": f"{p.source}; {p.read}" + (f"; mean over {task_list}" if task_list else ""),
            "mean_of": task_list or None,
            "card": language_card.hash if language_card else content_hash(card),
            **provenance(),
        }
