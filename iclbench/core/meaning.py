"""Texts that describe a test of a family. A report can show them without importing the family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """The description of a test, registered under the test's name (entry points `iclbench.tests`).

    Attributes:
        title: name of the test in tables and figures.
        asks: the question that the test answers.
        chance: accuracy of guessing; None if it depends on the task.
        guessing: accuracy of guessing, in words.
        finer: whether the test is a more detailed version of another test. Tables over several tasks omit such tests.
    """

    title: str
    asks: str
    chance: float | None = None
    guessing: str = "unknown"
    finer: bool = False
