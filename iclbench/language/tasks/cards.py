"""Language cards, `tasks/language/<name>.toml`, which define the tasks of pretrained language models.

A card defines the source of its examples, the format of the prompt and how answers are judged. A card with `subsets`
defines one task for each subset (`mmlu-abstract-algebra`). A suite, `tasks/language/suites/<name>.toml`, is a list of
tasks for which papers publish the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from iclbench.config.cards import Published, Values, card_names, cards_folder, load_card
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.core.settings import BaseSettings, PositiveInt, Role, validate
from iclbench.language.tasks.pools import Pool, Reader
from iclbench.registry import READERS

# Value of the column `preset` in the rows of language models, which have no presets.
PRESET = "language"


class LanguageCard(BaseSettings):
    """A card that defines one task, or one task for each subset.

    Attributes:
        family: the type of task, such as algorithmic, knowledge, linguistic, translation or sentiment. With `subsets`,
            the name of its group is appended to the family of a task, as in mmlu-stem.
        data: the version of the examples. It is needed only if a published number was measured on another version,
            which is then the `data` of that number.
        summary: a description of the task in one line.
        source: paper, with table or appendix.
        notes: further remarks, such as deviations from the paper.
        reader: the class that reads the examples (`iclbench.registry.READERS`).
        parameters: parameters of the reader.
        labels: for each class in the data, its word in the prompt. The order of the classes is the order in which
            candidates are scored.
        template: the text of one example, with the placeholders {x} and {y}.
        separator: text between examples.
        shots: default number of demonstrations.
        demonstrations: whether all queries with the same demonstration seed have the same demonstrations (`shared`) or
            each query has its `own`.
        answers: how the model answers: with the candidate that has the highest score (`choice`), or with the most
            probable next tokens (`greedy`).
        match: whether a greedy answer must be `equal` to the correct answer or begin with it (`prefix`). If only the
            first token is judged, `prefix` also accepts a token that the correct answer begins with.
        episodes: default number of queries.
        subsets: subsets of the data set, by group.
        left_out: subsets that are evaluated only if the user names them, each with the reason.
        published: numbers from papers. With `subsets`, they are means over the subsets.
    """

    family: str
    summary: Annotated[str, Role.REPORTING]
    source: Annotated[str, Role.REPORTING] = ""
    notes: Annotated[str, Role.REPORTING] = ""
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
    published: Annotated[list[Published], Role.REPORTING] = []

    @property
    def hash(self) -> str:
        """Content hash of the parts that determine an evaluation; descriptions and published numbers do not affect
        it."""
        return content_hash(self.model_dump(mode="json", exclude={*self.with_role(Role.REPORTING)}, exclude_unset=True))

    @field_validator("template")
    @classmethod
    def _check_placeholders(cls, value: str) -> str:
        if value.count("{x}") != 1 or value.count("{y}") != 1 or value.index("{x}") > value.index("{y}"):
            raise ValueError(f"expected {{x}} once and {{y}} once after it, got {value!r}")
        return value

    @field_validator("reader")
    @classmethod
    def _check_reader(cls, value: str) -> str:
        if ":" not in value:
            try:
                READERS.entry(value)
            except UnknownNameError as error:
                raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _check_subsets(self) -> LanguageCard:
        subsets = [subset for group in self.subsets.values() for subset in group]
        duplicates = sorted({subset for subset in subsets if subsets.count(subset) > 1})
        unknown = sorted(self.left_out.keys() - set(subsets))
        if duplicates or unknown:
            problem = (
                f"'{duplicates[0]}' is listed twice"
                if duplicates
                else f"left_out names '{unknown[0]}', which is not a subset"
            )
            raise ValueError(f"subsets: {problem}")
        return self


class SuiteCard(BaseSettings):
    """A list of tasks for which papers publish the mean.

    Attributes:
        summary: a description of the suite in one line.
        source: paper, with table.
        notes: further remarks.
        tasks: names of tasks, as defined by cards and their subsets.
        published: published means over the tasks.
    """

    summary: str
    source: str = ""
    notes: str = ""
    tasks: Annotated[list[str], Field(min_length=1)]
    published: list[Published] = []


@dataclass(frozen=True)
class LanguageTask:
    """One task, which is defined by a card or by one subset of a card.

    Attributes:
        name: name of the task in the tables.
        card: the card.
        subset: the subset of the data set; None if the card has no subsets.
        family: value of the column `family` in the tables.
        left_out: the reason why the task is evaluated only if the user names it; otherwise empty.
        folder: folder of the card and of the files that the card names.
    """

    name: str
    card: LanguageCard
    subset: str | None = None
    family: str = ""
    left_out: str = ""
    folder: Path | None = None

    @cached_property
    def hash(self) -> str:
        """Content hash of the card without descriptions and published numbers."""
        return self.card.hash

    @property
    def reader(self) -> type[Reader]:
        """The class that reads the examples.

        Raises:
            UsageError: the reader on the card is not a subclass of `Reader`.
        """
        cls = READERS.get(self.card.reader)
        if not (isinstance(cls, type) and issubclass(cls, Reader)):
            raise UsageError(
                f"task '{self.name}': reader '{self.card.reader}' is not a subclass of Reader", code="bad-value"
            )
        return cls

    def pool(self, data_dir: Path | None = None) -> Pool:
        """Read the examples.

        Raises:
            DataError: the user's copy of the data is missing or damaged.
        """
        parameters = validate(self.reader.Parameters, self.card.parameters, f"task '{self.name}': parameters")
        return self.reader(parameters, self.card.labels, data_dir, self.folder).read(self.subset)


def load_language_card(name: str) -> tuple[str, LanguageCard]:
    """Load a card by name or path to a `.toml` file. Return its canonical name and the card."""
    return load_card("tasks/language", name, LanguageCard)


def load_suite(name: str) -> tuple[str, SuiteCard]:
    """Load a suite by name. Return its canonical name and the suite."""
    return load_card("tasks/language/suites", name, SuiteCard)


def tasks_of(name: str, card: LanguageCard, folder: Path | None = None) -> list[LanguageTask]:
    """Return the task that a card defines, or one task for each of its subsets."""
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
    """Return the tasks of all cards in iclbench."""
    folder = cards_folder("tasks/language")
    return tuple(task for name in card_names("tasks/language") for task in tasks_of(*load_language_card(name), folder))


def task_groups() -> dict[str, list[str]]:
    """Return the names of the tasks in each suite, in each card with subsets and in each family."""
    groups: dict[str, list[str]] = {name: load_suite(name)[1].tasks for name in card_names("tasks/language/suites")}
    for task in shipped_tasks():
        if task.left_out:
            continue
        for group in {task.family, *([task.card.family] if task.card.subsets else [])} - {task.name}:
            groups.setdefault(group, []).append(task.name)
    return groups
