"""A test that a family has of its own, in words: what a report says of it, without importing the family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """A test in words; registered under the test's name (entry points `iclbench.tests`).

    Attributes:
        title: what it is called in tables and figures.
        asks: what it asks.
        chance: the accuracy of guessing; None: it depends on the task.
        guessing: the same in words.
        finer: a finer version of another test, left out of tables over several tasks.
    """

    title: str
    asks: str
    chance: float | None = None
    guessing: str = "unknown"
    finer: bool = False
