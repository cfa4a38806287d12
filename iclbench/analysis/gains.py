"""Gains in log-likelihood from related datasets, and the influence of single episodes on the mean gain.

A single episode can cause most of a mean gain over a few hundred episodes, for example if its kernel cannot be
identified from its context. Two numbers reveal this: the median gain, and the largest share of a single episode in the
total gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iclbench.analysis.pairs import Difference, mean_with_interval, score_gaps
from iclbench.core.formats import signed

# The text of a gain mentions the share of the episode with the largest absolute gain if it is at least this value.
MIN_NAMED_SHARE = 0.1


@dataclass(frozen=True)
class Gain(Difference):
    """A mean gain with its 95 % interval.

    Attributes:
        median: median over episodes.
        largest_share: share of the total gain over all episodes that is due to the episode with the largest absolute
            gain; negative if this gain and the total have opposite signs.
    """

    median: float
    largest_share: float

    @property
    def line(self) -> str:
        """The gain as text, with `largest_share` if its absolute value is at least `MIN_NAMED_SHARE`."""
        share = ""
        if abs(self.largest_share) >= MIN_NAMED_SHARE:
            verb = "accounts for" if self.largest_share > 0 else "offsets"
            share = f"; one episode {verb} {abs(self.largest_share):.0%} of it"
        return f"{signed(self.value)} [{signed(self.low)}, {signed(self.high)}], median {signed(self.median)}{share}"


def gain(with_related: pd.Series, without_related: pd.Series) -> Gain | None:
    """The mean gain from related datasets, paired by episode; None for fewer than two common episodes or if all gains
    are 0."""
    by_episode = score_gaps(with_related, without_related)
    if by_episode is None or not by_episode.any():
        return None
    mean, total = mean_with_interval(by_episode), by_episode.sum()
    largest_share = by_episode[np.abs(by_episode).argmax()] / total if total else np.inf
    return Gain(mean.value, mean.low, mean.high, float(np.median(by_episode)), float(largest_share))


def gains(
    likelihoods: Callable[[str, int], pd.Series | None], max_related: dict[str, int]
) -> dict[tuple[str, int], Gain]:
    """The gains from related datasets, by contestant and number of related datasets.

    Args:
        likelihoods: returns the log-likelihood of every episode for a contestant and a number of related datasets.
        max_related: the largest number of related datasets of each contestant.
    """
    by_contestant = {}
    for name, max_count in max_related.items():
        without_related = likelihoods(name, 0)
        for n in range(1, max_count + 1):
            with_related = likelihoods(name, n)
            if without_related is None or with_related is None:
                continue
            if (difference := gain(with_related, without_related)) is not None:
                by_contestant[name, n] = difference
    return by_contestant
