"""What a reader makes of a data set: examples to demonstrate with, and examples to be asked."""

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
    """An input, the right output, and the outputs to choose from, if the input brings its own."""

    x: str
    y: str
    candidates: tuple[str, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """The question: two examples with equal questions are the same query."""
        return (self.x, *self.candidates)


def unique(examples: Iterable[Example]) -> tuple[Example, ...]:
    """The examples without repeated questions."""
    by_question: dict[tuple[str, ...], Example] = {}
    for example in examples:
        by_question.setdefault(example.asked, example)
    return tuple(by_question.values())


@dataclass(frozen=True)
class Pool:
    """All examples of a task.

    Attributes:
        demonstrations: what demonstrations are drawn from.
        queries: what is asked; the same tuple where a task does not tell the two apart.
        labels: the outputs to choose from where they are the same for all inputs; empty: the examples bring theirs, or
            the answer is free.
        development: examples that settings may be chosen on; empty: part of `demonstrations` is set aside.
        fixed: the data set says which demonstrations are to be used, and in which order.
    """

    demonstrations: tuple[Example, ...]
    queries: tuple[Example, ...]
    labels: tuple[str, ...] = ()
    development: tuple[Example, ...] = ()
    fixed: bool = False

    @cached_property
    def apart(self) -> tuple[tuple[Example, ...], tuple[Example, ...], tuple[Example, ...]]:
        """Queries, demonstrations and development examples, without overlap.

        The same whatever is drawn: a pool that does not tell queries from demonstrations is parted in 2 : 1 : 1, one
        without development examples keeps half of the demonstrations for them.
        """
        if self.fixed:
            return self.queries, self.demonstrations, self.development
        queries, demonstrations = self.queries, self.demonstrations
        if queries == demonstrations:
            half = len(queries) // 2
            mixed = fixed_shuffle(queries, "language-queries")
            queries, demonstrations = mixed[:half], mixed[half:]
        used = {e.asked for e in queries}
        development = tuple(e for e in self.development if e.asked not in used)
        used |= {e.asked for e in development}
        demonstrated = tuple(e for e in demonstrations if e.asked not in used)
        if not development:
            mixed = fixed_shuffle(demonstrated, "language-development")
            half = (len(demonstrated) + 1) // 2
            demonstrated, development = mixed[:half], mixed[half:]
        return queries, demonstrated, development

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all of it: prompts drawn from other data are other prompts."""
        parts = [self.demonstrations, self.queries, self.development]
        return content_hash(
            {
                "examples": [[[e.x, e.y, *e.candidates] for e in examples] for examples in parts],
                "labels": list(self.labels),
                "fixed": self.fixed,
            }
        )


def fixed_shuffle(examples: tuple[Example, ...], stream: str) -> tuple[Example, ...]:
    """In an order that is the same in every run."""
    # Imported here, so that listing tasks needs neither.
    import numpy as np

    from iclbench.core.seeds import stream_seed

    order = np.random.default_rng(stream_seed(0, stream)).permutation(len(examples))
    return tuple(examples[i] for i in order)


class Reader(ABC):
    """Reads the pool of a task from the card's parameters and the user's own copy of the data."""

    # What a card may say in `[parameters]`: nothing, unless a reader says otherwise.
    Parameters: ClassVar[type[BaseSettings]] = BaseSettings
    # Whether the examples come from files that the user has to bring.
    needs_data: ClassVar[bool] = False

    def __init__(
        self, parameters: Any, labels: dict[str, str], data_dir: Path | None = None, folder: Path | None = None
    ) -> None:
        """`parameters`: of the class `Parameters`; `labels`: from the names that classes have in the data to the words
        that stand in the prompt; `data_dir`: the user's copies of data sets; `folder`: where the card lies."""
        self.parameters, self.labels, self.data_dir, self.folder = parameters, labels, data_dir, folder

    @abstractmethod
    def read(self, subset: str | None = None) -> Pool:
        """The pool, of one subset where the card has several.

        Raises:
            DataError: a file is missing or is not what it should be; the line says which file is looked for where, and
                in which layout.
        """
