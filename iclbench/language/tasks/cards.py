"""Language cards: the tasks of pretrained language models, `tasks/language/<name>.toml`.

A card says where its examples come from, how they are written down and how an answer is judged. One with `subsets`
stands for a task each (`mmlu-abstract-algebra`). A suite, `tasks/language/suites/<name>.toml`, is a list of tasks whose
mean is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from iclbench.config.cards import Published, Values, cards_folder, load_card, names
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.core.settings import BaseSettings, PositiveInt, validate
from iclbench.language.tasks.pools import Pool, Reader
from iclbench.registry import READERS

# Value of the column `preset` in all rows of language models, which have no presets.
PRESET = "language"


class LanguageCard(BaseSettings):
    """A task, or as many tasks as it has subsets.

    Attributes:
        family: what the task asks for: algorithmic, knowledge, linguistic, translation, sentiment, ... With `subsets`
            the family of each task is this and the name of its group: mmlu-stem.
        data: what the examples are, where those of published numbers are others; these say theirs.
        summary: what it is, in a line.
        source: paper, with table or appendix.
        notes: what else a reader should know, such as deviations.
        reader: what reads the examples (`iclbench.registry.READERS`), with `parameters`.
        parameters: the reader's.
        labels: names of classes in the data and the words that stand for them in the prompt, in the order in which
            candidates are scored.
        template: one example, with {x} and {y}.
        separator: between examples.
        shots: demonstrations by default.
        demonstrations: `shared` by all queries of a demonstration seed, or every query has its `own`.
        answers: `choice`: the candidate of the highest score; `greedy`: the most probable next tokens.
        match: when a greedy answer is right: `equal`, or `prefix`: it begins with the right one; its first token alone
            is right also where the right one begins with it.
        episodes: queries by default.
        subsets: groups of subsets of the data set.
        left_out: subsets that are not asked unless they are named, and why.
        published: numbers of papers; with `subsets` those of the mean over them.
    """

    family: str
    summary: str
    source: str = ""
    notes: str = ""
    data: Values = {}
    reader: str
    parameters: Values = {}
    labels: dict[str, str] = {}
    template: str
    separator: str = "\n\n"
    shots: Annotated[int, Field(ge=0)]
    demonstrations: Literal["shared", "own"] = "shared"
    answers: Literal["choice", "greedy"] = "choice"
    match: Literal["equal", "prefix"] = "equal"
    episodes: PositiveInt = 400
    subsets: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    published: list[Published] = []

    @field_validator("template")
    @classmethod
    def _both_places(cls, value: str) -> str:
        if value.count("{x}") != 1 or value.count("{y}") != 1 or value.index("{x}") > value.index("{y}"):
            raise ValueError(f"expected {{x}} once and {{y}} once after it, got {value!r}")
        return value

    @field_validator("reader")
    @classmethod
    def _known_reader(cls, value: str) -> str:
        if ":" not in value:
            try:
                READERS.entry(value)
            except UnknownNameError as error:
                raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _subsets_once(self) -> LanguageCard:
        subsets = [subset for group in self.subsets.values() for subset in group]
        duplicates = sorted({subset for subset in subsets if subsets.count(subset) > 1})
        unknown = sorted(self.left_out.keys() - set(subsets))
        if duplicates or unknown:
            problem = (
                f"'{duplicates[0]}' is listed twice"
                if duplicates
                else f"left_out names '{unknown[0]}', which is no subset"
            )
            raise ValueError(f"subsets: {problem}")
        return self


class SuiteCard(BaseSettings):
    """Tasks whose mean is published.

    Attributes:
        summary: what they are, in a line.
        source: paper, with table.
        notes: what else a reader should know.
        tasks: names of language cards and of their subsets.
        published: means over them.
    """

    summary: str
    source: str = ""
    notes: str = ""
    tasks: Annotated[list[str], Field(min_length=1)]
    published: list[Published] = []


@dataclass(frozen=True)
class LanguageTask:
    """One task: a card, or one subset of it.

    Attributes:
        name: its name in the tables.
        card: the card.
        subset: the subset of the data set, where the card has several.
        family: its value in the column `family`.
        left_out: why it is not asked unless it is named; empty: it is.
        folder: where the card lies, and files that it names.
    """

    name: str
    card: LanguageCard
    subset: str | None = None
    family: str = ""
    left_out: str = ""
    folder: Path | None = None

    @cached_property
    def hash(self) -> str:
        """Content hash of the card."""
        return content_hash(self.card)

    @property
    def reader(self) -> type[Reader]:
        cls = READERS.get(self.card.reader)
        if not (isinstance(cls, type) and issubclass(cls, Reader)):
            raise UsageError(f"task '{self.name}': '{self.card.reader}' is no reader of examples")
        return cls

    def pool(self, data_dir: Path | None = None) -> Pool:
        """The examples; raises `DataError` where the user's copy of the data is missing or damaged."""
        parameters = validate(self.reader.Parameters, self.card.parameters, f"task '{self.name}': parameters")
        return self.reader(parameters, self.card.labels, data_dir, self.folder).read(self.subset)


def load_language_card(name: str) -> tuple[str, LanguageCard]:
    """The card's canonical name and the card, from a name or a path to a `.toml` file."""
    return load_card("tasks/language", name, LanguageCard)


def load_suite(name: str) -> tuple[str, SuiteCard]:
    """The suite's canonical name and the suite."""
    return load_card("tasks/language/suites", name, SuiteCard)


def tasks_of(name: str, card: LanguageCard, folder: Path | None = None) -> list[LanguageTask]:
    """The task that a card stands for, or those of its subsets."""
    if not card.subsets:
        return [LanguageTask(name, card, None, card.family, "", folder)]
    return [
        LanguageTask(
            f"{name}-{canonical(subset)}",
            card,
            subset,
            f"{card.family}-{canonical(group)}",
            card.left_out.get(subset, ""),
            folder,
        )
        for group, subsets in card.subsets.items()
        for subset in subsets
    ]


@cache
def shipped_tasks() -> tuple[LanguageTask, ...]:
    """All tasks of the cards that come with iclbench."""
    folder = cards_folder("tasks/language")
    return tuple(task for name in names("tasks/language") for task in tasks_of(*load_language_card(name), folder))


def suites() -> dict[str, list[str]]:
    """Names of tasks that have a name together: suites, cards with subsets, families."""
    groups: dict[str, list[str]] = {name: load_suite(name)[1].tasks for name in names("tasks/language/suites")}
    for task in shipped_tasks():
        if task.left_out:
            continue
        for group in {task.family, *([task.card.family] if task.card.subsets else [])} - {task.name}:
            groups.setdefault(group, []).append(task.name)
    return groups
