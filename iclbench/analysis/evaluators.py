"""Titles and order of evaluators: the two questions, and the tests that families register."""

from __future__ import annotations

import logging

import pandas as pd

from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.meaning import Meaning
from iclbench.registry import TESTS
from iclbench.tables.evaluators import INSIDE, QUESTIONS

log = logging.getLogger("iclbench")

AS_TRAINED = Meaning("as trained", "fresh sequences drawn as in training", None, "1 / training labels")


def meaning(evaluator: str) -> Meaning:
    """What is known of an evaluator; a test without registered words goes by its name."""
    if evaluator == "targets":
        return AS_TRAINED
    # Not `TESTS.get`: a name in a table from elsewhere must load nothing that is not registered.
    entry = TESTS.entries.get(canonical(evaluator))
    try:
        found = entry and entry.load()
    except UsageError as error:
        log.warning("test '%s' goes without its words: %s", evaluator, error)
        found = None
    if isinstance(found, Meaning):
        return found
    return Meaning(evaluator.replace("_", " "), "a test that the family has of its own")


def in_order(evaluators: pd.Series) -> list[str]:
    """The evaluators that occur: tests in the order in which they are registered, the question `targets`, then others
    by name."""
    order = {name: i for i, name in enumerate([*TESTS.entries, "targets"])}
    found = (str(e) for e in evaluators.unique())
    return sorted(found, key=lambda name: (order.get(canonical(name), len(order)), name))


def is_test(evaluators: pd.Series) -> pd.Series:
    """For every row whether it is a test that a family has of its own."""
    return ~evaluators.isin(["train", *QUESTIONS, *INSIDE])
