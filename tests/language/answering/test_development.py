"""The number of passes that is chosen: worked by hand."""

from __future__ import annotations

import numpy as np

from iclbench.language.answering.answers import Answers
from iclbench.language.answering.development import best


def answers(*scores: float) -> Answers:
    return Answers({"accuracy": np.array(scores, dtype=float)}, ["x"] * len(scores), [None] * len(scores))


def test_of_equally_good_numbers_of_passes_the_fewest_are_chosen() -> None:
    found = {3: answers(1, 1, 0), 1: answers(0, 1, 0), 2: answers(1, 0, 1), 4: answers(0, 1, 1)}
    assert best(found) == 2


def test_what_was_not_asked_does_not_count() -> None:
    assert best({1: answers(1, 0, np.nan), 2: answers(1, np.nan, np.nan)}) == 2
