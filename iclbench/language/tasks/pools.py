"""Pools of examples for demonstrations and queries, and the base class of the readers that create them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from iclbench.core.hashing import content_hash
from iclbench.core.settings import BaseSettings


@dataclass(frozen=True)
class Example:
    """An input `x` and its correct output `y`. `candidates` is empty if all inputs have the same candidates, or
    none."""

    x: str
    y: str
    candidates: tuple[str, ...] = ()

    @property
    def question(self) -> tuple[str, ...]:
        """The input and the candidates. Two examples with the same question are the same query."""
        return (self.x, *self.candidates)


def unique(examples: Iterable[Example]) -> tuple[Example, ...]:
    """Return the examples without repeated questions. The first example of each question is returned."""
    by_question: dict[tuple[str, ...], Example] = {}
    for example in examples:
        by_question.setdefault(example.question, example)
    return tuple(by_question.values())


@dataclass(frozen=True)
class Pool:
    """All examples of a task.

    Attributes:
        demonstrations: examples from which demonstrations are drawn.
        queries: examples from which queries are drawn. It is the same tuple as `demonstrations` if the data set does
            not separate the two.
        labels: candidates for all inputs; empty if the examples have their own candidates or answers are generated.
        development: examples on which settings are selected; if empty, a part of `demonstrations` is used.
        fixed: whether the data set defines the demonstrations and their order.
    """

    demonstrations: tuple[Example, ...]
    queries: tuple[Example, ...]
    labels: tuple[str, ...] = ()
    development: tuple[Example, ...] = ()
    fixed: bool = False

    @cached_property
    def splits(self) -> tuple[tuple[Example, ...], tuple[Example, ...], tuple[Example, ...]]:
        """Queries, demonstrations and development examples. They do not overlap and are the same for all seeds.

        The parts of a `fixed` pool do not change. Otherwise, a pool that does not separate queries and demonstrations
        is split 2 : 1 : 1, and in any other pool without development examples, half of the demonstrations become
        development examples.
        """
        if self.fixed:
            return self.queries, self.demonstrations, self.development
        queries, demonstrations = self.queries, self.demonstrations
        if queries == demonstrations:
            half = len(queries) // 2
            shuffled = fixed_shuffle(queries, "language-queries")
            queries, demonstrations = shuffled[:half], shuffled[half:]
        used_questions = {e.question for e in queries}
        development = tuple(e for e in self.development if e.question not in used_questions)
        used_questions |= {e.question for e in development}
        remaining = tuple(e for e in demonstrations if e.question not in used_questions)
        if not development:
            shuffled = fixed_shuffle(remaining, "language-development")
            half = (len(remaining) + 1) // 2
            remaining, development = shuffled[:half], shuffled[half:]
        return queries, remaining, development

    @cached_property
    def fingerprint(self) -> str:
        """Content hash of all examples."""
        parts = [self.demonstrations, self.queries, self.development]
        return content_hash(
            {
                "examples": [[[e.x, e.y, *e.candidates] for e in examples] for examples in parts],
                "labels": list(self.labels),
                "fixed": self.fixed,
            }
        )


def fixed_shuffle(examples: tuple[Example, ...], stream: str) -> tuple[Example, ...]:
    """Return the examples in a random order that is always the same."""
    # These imports are slow, and commands that only list tasks do not need them.
    import numpy as np

    from iclbench.core.seeds import stream_seed

    order = np.random.default_rng(stream_seed(0, stream)).permutation(len(examples))
    return tuple(examples[i] for i in order)


class Reader(ABC):
    """Reads the pool of a task. The base class of all readers.

    A reader uses the parameters in the task's card and, if needed, the user's copy of the data.
    """

    # The model of the table `[parameters]` of a card, which has no keys by default.
    Parameters: ClassVar[type[BaseSettings]] = BaseSettings
    # Whether the examples come from files that the user must provide.
    needs_data: ClassVar[bool] = False

    def __init__(
        self, parameters: Any, labels: dict[str, str], data_dir: Path | None = None, folder: Path | None = None
    ) -> None:
        """Create a reader.

        Args:
            parameters: an instance of `Parameters`.
            labels: for each class in the data, its word in the prompt.
            data_dir: folder of the user's data sets.
            folder: folder of the card.
        """
        self.parameters, self.labels, self.data_dir, self.folder = parameters, labels, data_dir, folder

    @abstractmethod
    def read(self, subset: str | None = None) -> Pool:
        """Read the pool of the task, or of one subset of the card.

        Raises:
            DataError: a file is missing or does not have the expected content. The message names the file, and the
                searched folders or the expected format.
        """
