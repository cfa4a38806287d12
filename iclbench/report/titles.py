"""Titles of shifts, of numbers of related datasets and of sources, and a sentence for captions."""

from __future__ import annotations

IN_DISTRIBUTION = "in-distribution"
ADJUSTED_NOTE = "Ceiling-adjusted log-likelihoods are comparable with numbers on other prompts."


def shift_title(shift: str) -> str:
    """The title of a shift.

    >>> shift_title("none"), shift_title("noisy-1")
    ('in-distribution', 'noisy-1')
    """
    return IN_DISTRIBUTION if shift == "none" else shift


def source(reason: str) -> str:
    """The paper and the table or figure of a published number, without the details of how the number was read.

    >>> source("Garg et al. 2022, figure 2; read off the plot, about 5 %")
    'Garg et al. 2022, figure 2'
    """
    return reason.partition(";")[0]


def paper(reason: str) -> str:
    """The paper of a published number.

    >>> paper("Garg et al. 2022, figure 2; read off the plot, about 5 %")
    'Garg et al. 2022'
    """
    return source(reason).partition(", ")[0]


def related_title(n: int) -> str:
    """The title of a number of related datasets.

    >>> related_title(0), related_title(1), related_title(3)
    ('no related dataset', '1 related dataset', '3 related datasets')
    """
    return "no related dataset" if n == 0 else f"{n} related dataset{'' if n == 1 else 's'}"
