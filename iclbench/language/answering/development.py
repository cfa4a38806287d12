"""Selection of the number of Deep-Thinking passes by accuracy, on held-out development examples or, as in the released
code, on the evaluation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from iclbench.language.answering.answers import Answers
from iclbench.language.prompting.prompts import LanguagePrompts


def development_prompts(prompts: LanguagePrompts) -> LanguagePrompts:
    """Return the development split of a prompt set, with the same demonstrations and at most as many queries (Yang et
    al. 2024, section 4.3).

    If the task has no development examples, `UsageError` is raised later, when the queries are drawn.
    """
    return replace(prompts, split="development").with_pool(prompts.pool)


def best_pass_count(answers: Mapping[int, Answers]) -> int:
    """Return the number of passes with the highest accuracy; in case of a tie, the smallest one."""
    return min(answers, key=lambda passes: (-np.nanmean(answers[passes].scores["accuracy"]), passes))
