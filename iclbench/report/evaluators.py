"""What the report knows of evaluators: the two questions, the tests of classification, and what looks inside a model.

Where a sequence holds images and labels, a query can be answered from the labels in context (in context) or from the
labels that its class had all through training (in weights). The tests are those of Chan et al. 2022 (arXiv 2205.05055)
and of the bursty protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

QUESTIONS = ("next", "targets")
# Evaluators whose rows are about the inside of a model or the tuning of a method, not answers to a question.
PROBES = ("probe", "gamma_search")
INSIDE = (*PROBES, "rank", "representation")
# The accuracy that papers plot: among the labels that an evaluator admits, not among all units of the head.
HEADLINE = "accuracy_within_choices"


@dataclass(frozen=True)
class Meaning:
    """A test in words: its title, what it asks, and what guessing gets, as a number and in words."""

    title: str
    asks: str
    chance: float | None = None
    guessing: str = "unknown"


_ONE_LABEL = "1 / training labels"
TESTS = {
    "icl": Meaning(
        "ICL",
        "classes never trained, four images of each of two, labelled at random: only the context can tell",
        0.5,
        "1/2",
    ),
    "icl_paired": Meaning(
        "ICL, paired",
        "each ICL sequence a second time with its two labels exchanged; right only if both are. Repeating the label of "
        "one place in the context, whatever the images, gets 1/2",
        0.25,
        "1/4",
    ),
    "iwl": Meaning("IWL", "no context image of the query's class: only the weights can tell", None, _ONE_LABEL),
    "iwl_macro": Meaning("IWL, macro", "IWL with every class asked equally often", None, _ONE_LABEL),
    "iwl_common": Meaning("IWL, common", "IWL of the most frequent classes", None, _ONE_LABEL),
    "iwl_rare": Meaning("IWL, rare", "IWL of all other classes", None, _ONE_LABEL),
    "iwl_new_drawings": Meaning("IWL, new drawings", "IWL by drawings that were kept from training", None, _ONE_LABEL),
    "flip": Meaning(
        "flip",
        "trained classes with the two labels exchanged: above 1/2 the context wins, below it the weights",
        0.5,
        "1/2",
    ),
    "targets": Meaning("as trained", "fresh sequences drawn as in training", None, _ONE_LABEL),
}


def meaning(evaluator: str) -> Meaning:
    """What is known of an evaluator; one of a third party goes by its name."""
    return TESTS.get(evaluator) or Meaning(evaluator.replace("_", " "), "a test that the family has of its own")


def in_order(evaluators: pd.Series) -> list[str]:
    """The evaluators that occur: ours in the order of `TESTS`, then others by name."""
    order = {name: i for i, name in enumerate(TESTS)}
    return sorted((str(e) for e in evaluators.unique()), key=lambda name: (order.get(name, len(order)), name))


def is_test(evaluators: pd.Series) -> pd.Series:
    """For every row whether it is a test that a family has of its own."""
    return ~evaluators.isin(["train", *QUESTIONS, *INSIDE])
