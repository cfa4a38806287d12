"""Texts about a test of a family, which a report can show without importing the family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """The texts about a test, registered under the test's name (entry points `iclbench.tests`).

    Attributes:
        title: its name in tables and figures.
        asks: what the test measures.
        chance: the accuracy of guessing; None if it depends on the task.
        guessing: the accuracy of guessing, in words.
        finer: whether it is a finer version of another test; tables over several tasks omit finer tests.
    """

    title: str
    asks: str
    chance: float | None = None
    guessing: str = "unknown"
    finer: bool = False
