"""Detection of oracles that are not optimal.

A task card may name any baseline as its oracle, so another contestant may be better. The Bayes-optimal predictor has
the smallest expected error and the highest expected log-likelihood. If a contestant is significantly better than an
oracle (paired by episode, with Bonferroni's correction for all comparisons), the oracle is not optimal on these
prompts. For example, its card was copied from another task, or its assumptions do not hold under a shift.

An oracle that is not optimal may fail so badly in a few episodes that the interval of the mean difference includes 0.
An example is least squares with as many examples as dimensions. Therefore, a second interval is computed from
differences that are winsorised at their upper quartile. The expected lead over an optimal oracle is at most 0, and
winsorising can only lower it, so a lower end above 0 is still evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import curve_gaps, mean_with_interval, score_gaps
from iclbench.analysis.target_scores import related_counts
from iclbench.core.formats import fixed
from iclbench.core.metrics import curve_metric, metric

_LEVEL = 0.95
_WINSORISED_AT = 0.75
_METRIC_NAMES = {"squared_error": "squared error"}


@dataclass(frozen=True)
class BeatenOracle:
    """An oracle that is not optimal, and the contestants that are better.

    Attributes:
        oracle: the name of the oracle.
        winners: the better contestants, the best first.
        value: the lead of the first winner over the oracle, averaged over episodes.
        low: the lower end of the interval of `value`.
        measure: the name of the compared score.
        has_backbone: whether a backbone is among the winners. A backbone may be better because it incorrectly sees
            later points.
    """

    oracle: str
    winners: tuple[str, ...]
    value: float
    low: float
    measure: str
    has_backbone: bool = False

    @property
    def line(self) -> str:
        """A message for the user, in one line."""
        others = f"; also better: {', '.join(self.winners[1:])}" if len(self.winners) > 1 else ""
        return (
            f"{self.oracle} is not optimal on these prompts: {self.winners[0]} is better by {fixed(self.value)} "
            f"(at least {fixed(self.low)}; paired by episode) in {self.measure}{others}"
            f"{'; check the models with iclbench check' * self.has_backbone}"
        )


def beaten_oracles(rows: pd.DataFrame, errors: EpisodeScores) -> list[BeatenOracle]:
    """The oracles of one prompt set that are significantly worse than a contestant.

    Args:
        rows: rows of `values` of one evaluator on one prompt set. Runs of one contestant are averaged episode by
            episode.
        errors: scores of single episodes on the prompt set.
    """
    rows = rows[rows["status"].eq("ok") & rows["axis"].isna() & rows["prompt_set"].notna()]
    kinds = dict(zip(rows["contestant"], rows["kind"], strict=True))
    contestants = [str(name) for name, kind in kinds.items() if kind in ("backbone", "baseline")]
    oracles = sorted(str(name) for name, kind in kinds.items() if kind == "oracle")
    comparison, level = _Comparison(rows, errors), 1 - (1 - _LEVEL) / max(1, len(contestants) * len(oracles))
    beaten = []
    for oracle in oracles:
        leads: dict[str, tuple[float, float, str]] = {}
        for name in contestants:
            gaps, measure = comparison.gaps(name, oracle)
            if gaps is not None and (low := lower_end(gaps, level)) > 0:
                leads[name] = (float(gaps.mean()), low, measure)
        winners = tuple(sorted(leads, key=lambda name: (-leads[name][0], name)))
        if winners:
            has_backbone = any(kinds[name] == "backbone" for name in winners)
            beaten.append(BeatenOracle(oracle, winners, *leads[winners[0]], has_backbone))
    return beaten


def lower_end(gaps: np.ndarray, level: float = _LEVEL) -> float:
    """The lower end of the confidence interval of the mean lead or, if higher, its lower end after the leads are
    winsorised at their upper quartile."""
    winsorised = np.minimum(gaps, np.quantile(gaps, _WINSORISED_AT))
    return max(mean_with_interval(scores, level).low for scores in (gaps, winsorised))


@dataclass(frozen=True)
class _Comparison:
    """Paired differences on one prompt set."""

    rows: pd.DataFrame
    errors: EpisodeScores

    def gaps(self, name: str, oracle: str) -> tuple[np.ndarray | None, str]:
        """The lead of a contestant over an oracle in every episode, and the name of the compared score. The lead is
        None without scores of single episodes."""
        prompt_set = str(self.rows["prompt_set"].iloc[0])
        if self.rows["evaluator"].eq("next").any():
            metric_name = curve_metric(self.rows["metric"].unique())
            curves, oracle_curves = (
                self.errors.curves(self._runs(contestant), prompt_set, metric_name) for contestant in (name, oracle)
            )
            gaps = None if curves is None or oracle_curves is None else curve_gaps(oracle_curves, curves)
            label = _METRIC_NAMES.get(metric_name, metric(metric_name).label)
            return gaps, f"area under the curve of the {label}"
        for metric_name, label in (("log_likelihood", "log-likelihood"), ("squared_error", "squared error")):
            counts, oracle_counts = self._related_counts(name, metric_name), self._related_counts(oracle, metric_name)
            if not counts or not oracle_counts:
                continue
            # An oracle with scores for several numbers of related datasets uses these datasets, so it is compared at
            # the largest number of the contestant. Other oracles have access to the process.
            oracle_count = counts[-1] if len(oracle_counts) > 1 else oracle_counts[0]
            scores, oracle_scores = (
                self.errors.targets(self._runs(contestant), prompt_set, metric_name, count)
                for contestant, count in ((name, counts[-1]), (oracle, oracle_count))
            )
            if scores is not None and oracle_scores is not None:
                is_error = metric_name == "squared_error"
                return score_gaps(*((oracle_scores, scores) if is_error else (scores, oracle_scores))), label
        return None, ""

    def _runs(self, contestant: str) -> list[str]:
        return sorted(self.rows.loc[self.rows["contestant"] == contestant, "run"].unique())

    def _related_counts(self, contestant: str, metric_name: str) -> list[int]:
        """The numbers of related datasets at which the contestant was evaluated."""
        return related_counts(self.rows[(self.rows["contestant"] == contestant) & (self.rows["metric"] == metric_name)])
