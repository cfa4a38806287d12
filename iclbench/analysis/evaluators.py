"""Titles and order of evaluators: the two questions and the registered tests of families."""

from __future__ import annotations

import logging

import pandas as pd

from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.meaning import Meaning
from iclbench.registry import TESTS
from iclbench.tables.evaluators import DIAGNOSTICS, QUESTIONS

log = logging.getLogger("iclbench")

AS_TRAINED = Meaning("as trained", "fresh sequences drawn as in training", None, "1 / training labels")


def meaning(evaluator: str) -> Meaning:
    """Title and meaning of an evaluator. The title of a test without a registered meaning is its name."""
    if evaluator == "targets":
        return AS_TRAINED
    # `TESTS.get` would import any `module:NAME`, but reading a table from an unknown source must not import its code.
    entry = TESTS.entries.get(canonical(evaluator))
    try:
        registered_meaning = entry and entry.load()
    except UsageError as error:
        log.warning("the title of test '%s' cannot be loaded: %s", evaluator, error)
        registered_meaning = None
    if isinstance(registered_meaning, Meaning):
        return registered_meaning
    return Meaning(evaluator.replace("_", " "), "a test of the family")


def sorted_evaluators(evaluators: pd.Series) -> list[str]:
    """The unique evaluators: tests in the order of registration, the question `targets`, then others by name."""
    order = {name: i for i, name in enumerate([*TESTS.entries, "targets"])}
    names = (str(evaluator) for evaluator in evaluators.unique())
    return sorted(names, key=lambda name: (order.get(canonical(name), len(order)), name))


def is_test(evaluators: pd.Series) -> pd.Series:
    """Whether the evaluator of each row is a test of a family."""
    return ~evaluators.isin(["train", *QUESTIONS, *DIAGNOSTICS])
