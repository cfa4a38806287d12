"""What related datasets gain, episode by episode, and whether one episode decides.

A mean gain over a few hundred episodes may be the work of one of them, whose kernel could not be told from its context.
The median and the largest episode's share of the sum say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iclbench.analysis.pairs import Difference, mean_of, score_gaps
from iclbench.core.formats import signed

# One episode decides when it holds such a part of the sum over all.
DECIDES = 0.1


@dataclass(frozen=True)
class Gain(Difference):
    """A mean gain with its 95 % interval, the median, and what part of the sum the largest episode holds (negative: it
    speaks against the sum)."""

    median: float
    largest: float

    @property
    def line(self) -> str:
        """The gain in words; the share of the largest episode only where it decides."""
        share = ""
        if abs(self.largest) >= DECIDES:
            share = f"; one episode {'makes' if self.largest > 0 else 'takes off'} {abs(self.largest):.0%} of it"
        return f"{signed(self.value)} [{signed(self.low)}, {signed(self.high)}], median {signed(self.median)}{share}"


def gain(more: pd.Series, less: pd.Series) -> Gain | None:
    """The gain of one score per episode over another, paired; None: fewer than two common episodes, or equal scores."""
    gains = score_gaps(more, less)
    if gains is None or not gains.any():
        return None
    mean, total = mean_of(gains), gains.sum()
    largest = gains[np.abs(gains).argmax()] / total if total else np.inf
    return Gain(mean.value, mean.low, mean.high, float(np.median(gains)), float(largest))


def gains(episodes: Callable[[str, int], pd.Series | None], asked: dict[str, int]) -> dict[tuple[str, int], Gain]:
    """By contestant and number of related datasets.

    Args:
        episodes: the log-likelihood of every episode of a contestant, given so many related datasets.
        asked: the largest number of each contestant.
    """
    found = {}
    for name, most in asked.items():
        alone = episodes(name, 0)
        for n in range(1, most + 1):
            with_them = episodes(name, n)
            if alone is not None and with_them is not None and (own := gain(with_them, alone)) is not None:
                found[name, n] = own
    return found
