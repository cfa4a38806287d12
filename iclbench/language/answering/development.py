"""How many passes Deep-Thinking makes, where that is chosen: on examples that are neither demonstrated nor asked, or,
as the released code does, on those that are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from iclbench.language.answering.answers import Answers
from iclbench.language.prompting.prompts import LanguagePrompts


def development(prompts: LanguagePrompts) -> LanguagePrompts:
    """The development split behind the same demonstrations, at most as many questions as are asked (as in the paper,
    section 4.3).

    Raises:
        UsageError: the task has no examples to spare; when they are drawn.
    """
    return replace(prompts, split="development").with_pool(prompts.pool)


def best(answers: Mapping[int, Answers]) -> int:
    """The number of passes of the highest accuracy; of equal ones the fewest."""
    return min(answers, key=lambda passes: (-np.nanmean(answers[passes].scores["accuracy"]), passes))
