"""Selection of the number of Deep-Thinking passes: on held-out development examples, or on the evaluation data as in
the released code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from iclbench.language.answering.answers import Answers
from iclbench.language.prompting.prompts import LanguagePrompts


def development_prompts(prompts: LanguagePrompts) -> LanguagePrompts:
    """The development split with the same demonstrations and at most as many queries as the evaluation (Yang et al.
    2024, section 4.3).

    Raises:
        UsageError: the task has no development examples (raised when the queries are drawn).
    """
    return replace(prompts, split="development").with_pool(prompts.pool)


def best_pass_count(answers: Mapping[int, Answers]) -> int:
    """The number of passes with the highest accuracy, and the smallest such number in case of a tie."""
    return min(answers, key=lambda passes: (-np.nanmean(answers[passes].scores["accuracy"]), passes))
