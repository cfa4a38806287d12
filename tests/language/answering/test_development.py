"""Selection of the number of passes against hand-computed results."""

from __future__ import annotations

import numpy as np

from iclbench.language.answering.answers import Answers
from iclbench.language.answering.development import best_pass_count


def answers(*scores: float) -> Answers:
    return Answers({"accuracy": np.array(scores, dtype=float)}, ["x"] * len(scores), [None] * len(scores))


def test_the_smallest_of_equally_good_numbers_of_passes_is_selected() -> None:
    by_passes = {3: answers(1, 1, 0), 1: answers(0, 1, 0), 2: answers(1, 0, 1), 4: answers(0, 1, 1)}
    assert best_pass_count(by_passes) == 2


def test_skipped_episodes_are_ignored() -> None:
    assert best_pass_count({1: answers(1, 0, np.nan), 2: answers(1, np.nan, np.nan)}) == 2
