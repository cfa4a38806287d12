"""Titles of shifts and of numbers of related datasets, and a sentence for captions."""

from __future__ import annotations

IN_DISTRIBUTION = "in-distribution"
ADJUSTED = (
    "ceiling-adjusted is a score minus what the oracle scores on the same prompts plus what it scores on average over "
    "the task, over the episodes that every oracle was asked; published numbers are for other draws, and compare with "
    "these."
)


def shift_title(shift: str) -> str:
    return IN_DISTRIBUTION if shift == "none" else shift


def related_title(n: int) -> str:
    """
    >>> related_title(0), related_title(1), related_title(3)
    ('no related dataset', '1 related dataset', '3 related datasets')
    """
    return "no related dataset" if n == 0 else f"{n} related dataset{'' if n == 1 else 's'}"
