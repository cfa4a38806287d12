"""Oracles that are beaten: a card may name any baseline its oracle, and on these prompts somebody is better.

The Bayes-optimal predictor has the smallest expected error and the highest expected log-likelihood. So whoever is
better than an oracle, paired by episode and beyond the interval of all comparisons together (Bonferroni), shows that it
is none there: the card was copied from another task, or a shift has made it one among others.

A false oracle may fail so badly in a few episodes (least squares with as many examples as dimensions) that the interval
of the mean holds anything. So the difference is also looked at with its upper quarter cut down to the quartile. If the
oracle were one, the mean would not be above 0, and what is cut from above is below: a lower end above 0 still tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import curve_gaps, mean_of, score_gaps
from iclbench.core.formats import fixed
from iclbench.core.metrics import curve_metric, metric

_LEVEL = 0.95
_CUT = 0.75
_CALLED = {"squared_error": "squared error"}


@dataclass(frozen=True)
class Beaten:
    """An oracle and who is better than it.

    Attributes:
        oracle: its name.
        by: who is better, the best of them first.
        value: by how much the first of them is, on average over episodes.
        low: the lower end of the interval of that.
        what: what it is better in.
        trained: whether a backbone is among them: one that looks ahead beats every oracle, too.
    """

    oracle: str
    by: tuple[str, ...]
    value: float
    low: float
    what: str
    trained: bool = False

    @property
    def line(self) -> str:
        """One line for the reader."""
        more = f"; also better: {', '.join(self.by[1:])}" if len(self.by) > 1 else ""
        return (
            f"{self.oracle} is not optimal here: {self.by[0]} is better by {fixed(self.value)} "
            f"(at least {fixed(self.low)}; paired by episode) in {self.what}{more}"
            f"{'; check the models with iclbench check' * self.trained}"
        )


def beaten(rows: pd.DataFrame, errors: EpisodeScores) -> list[Beaten]:
    """The oracles of one prompt set that somebody beats.

    Args:
        rows: value rows of one evaluator on one prompt set; runs of one contestant are averaged episode by episode.
        errors: scores of single episodes on it.
    """
    rows = rows[rows["status"].eq("ok") & rows["axis"].isna() & rows["prompt_set"].notna()]
    kinds = dict(zip(rows["contestant"], rows["kind"], strict=True))
    others = [str(name) for name, kind in kinds.items() if kind in ("backbone", "baseline")]
    oracles = sorted(str(name) for name, kind in kinds.items() if kind == "oracle")
    compare, level = _Comparison(rows, errors), 1 - (1 - _LEVEL) / max(1, len(others) * len(oracles))
    found = []
    for oracle in oracles:
        ahead: dict[str, tuple[float, float, str]] = {}
        for name in others:
            gaps, what = compare.gaps(name, oracle)
            if gaps is not None and (low := lower_end(gaps, level)) > 0:
                ahead[name] = (float(gaps.mean()), low, what)
        by = sorted(ahead, key=lambda name: (-ahead[name][0], name))
        if by:
            found.append(Beaten(oracle, tuple(by), *ahead[by[0]], any(kinds[name] == "backbone" for name in by)))
    return found


def lower_end(gaps: np.ndarray, level: float = _LEVEL) -> float:
    """The lower end of the interval of a mean, or that of the mean of what is left when the upper quarter is cut down
    to the quartile, whichever is higher."""
    return max(mean_of(each, level).low for each in (gaps, np.minimum(gaps, np.quantile(gaps, _CUT))))


@dataclass(frozen=True)
class _Comparison:
    """Paired differences on one prompt set."""

    rows: pd.DataFrame
    errors: EpisodeScores

    def gaps(self, name: str, oracle: str) -> tuple[np.ndarray | None, str]:
        """By how much a contestant is better than an oracle in every episode, and in what; None where single episodes
        are not known."""
        prompt_set = str(self.rows["prompt_set"].iloc[0])
        if self.rows["evaluator"].eq("next").any():
            of = curve_metric(self.rows["metric"])
            own, of_oracle = (self.errors.curves(self._runs(n), prompt_set, of) for n in (name, oracle))
            gaps = None if own is None or of_oracle is None else curve_gaps(of_oracle, own)
            return gaps, f"area under the curve of the {_CALLED.get(of, metric(of).label)}"
        for of, what in (("log_likelihood", "log-likelihood"), ("squared_error", "squared error")):
            asked, allowed = self._related(name, of), self._related(oracle, of)
            if not asked or not allowed:
                continue
            # One that uses related datasets stands beside who was given as many; without any it is told what they tell.
            counts = (asked[-1], asked[-1] if len(allowed) > 1 else allowed[0])
            mine, best = (
                self.errors.targets(self._runs(n), prompt_set, of, count)
                for n, count in zip((name, oracle), counts, strict=True)
            )
            if mine is not None and best is not None:
                return score_gaps(*((mine, best) if of == "log_likelihood" else (best, mine))), what
        return None, ""

    def _runs(self, contestant: str) -> list[str]:
        return sorted(self.rows.loc[self.rows["contestant"] == contestant, "run"].unique())

    def _related(self, contestant: str, metric: str) -> list[int]:
        """The numbers of related datasets that it was asked with."""
        own = self.rows[(self.rows["contestant"] == contestant) & (self.rows["metric"] == metric)]
        return sorted(int(n) for n in own["n_related"].dropna().unique())
