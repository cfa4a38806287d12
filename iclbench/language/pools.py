"""What a reader makes of a data set: examples to demonstrate with, and examples to be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iclbench.cards import Strict, content_hash


@dataclass(frozen=True)
class Example:
    """An input, the right output, and the outputs to choose from, if the input brings its own."""

    x: str
    y: str
    candidates: tuple[str, ...] = ()


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

    @property
    def fingerprint(self) -> str:
        """Hash of all of it: prompts drawn from other data are other prompts."""
        parts = [self.demonstrations, self.queries, self.development]
        return content_hash({"examples": [[[e.x, e.y, *e.candidates] for e in part] for part in parts],
                             "labels": list(self.labels), "fixed": self.fixed})  # fmt: skip


class Reader(ABC):
    """Reads the pool of a task from the card's parameters and the user's own copy of the data."""

    class Parameters(Strict):
        """What a card may say in `[parameters]`."""

    # Whether the examples come from files that the user has to bring.
    needs_data: ClassVar[bool] = False

    def __init__(self, parameters: Strict, labels: dict[str, str], data_dir: Path | None = None) -> None:
        """`labels`: from the names that classes have in the data to the words that stand in the prompt."""
        self.parameters, self.labels, self.data_dir = parameters, labels, data_dir

    @abstractmethod
    def read(self, subset: str | None = None) -> Pool:
        """The pool, of one subset where the card has several.

        Raises:
            DataError: a file is missing or is not what it should be; the line says which file is looked for where, and
                in which layout.
        """
