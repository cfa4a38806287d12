"""Normalised scores over all families of one preset, for the heat map, the ranking and the Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from iclbench.analysis.evaluators import meaning
from iclbench.analysis.pairs import Difference, difference, score_difference
from iclbench.analysis.separation import Separation, separation
from iclbench.analysis.slices import Results, Slice, rows_of
from iclbench.core.metrics import metric
from iclbench.tables.evaluators import DIAGNOSTICS, QUESTIONS
from iclbench.tables.means import means_over_seeds
from iclbench.tables.related import without_related

# Defaults for the metric of a score and for the predictor that scores 1, if no row contains them.
_DEFAULTS = ("squared_error", "the oracle, or the best baseline")
# The order of contests by evaluator. Contests of other evaluators come last.
_ORDER = {"next": 0, "targets": 1, "icl": 2, "iwl": 2}


@dataclass(frozen=True)
class Contest:
    """A task, or one of its tests, for which each contestant has one score.

    Attributes:
        task: the slice of the results.
        evaluator: the question or test.
        metric: the metric that the score is computed from.
        reference: the predictor that scores 1.
        span: the difference in the metric between the scores 0 and 1; NaN if no score row contains it.
        prompt_set: the prompt set of all rows.
        rows: the score rows of single runs.
        hidden_rows: the score rows of contestants that are not shown.
    """

    task: Slice
    evaluator: str
    metric: str
    reference: str
    span: float
    prompt_set: str
    rows: pd.DataFrame
    hidden_rows: pd.DataFrame

    @property
    def title(self) -> str:
        test_title = "" if self.evaluator in QUESTIONS else f" · {meaning(self.evaluator).title}"
        return f"{self.task.name}{test_title}"

    @property
    def family(self) -> str:
        return str(self.rows["family"].iloc[0])

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row per contestant, averaged over runs (seeds).

        Columns contestant, kind, score, low, high (the envelope of the runs' intervals), lowest, highest, sd (over
        runs), n_episodes, runs (their number), run (their names) and row (the title of the contest).
        """
        means = means_over_seeds(self.rows, ["contestant", "kind"]).rename(columns={"value": "score"})
        numbers = ["score", "lowest", "highest", "low", "high"]
        return means.astype(dict.fromkeys(numbers, float)).assign(row=self.title)

    @cached_property
    def guessing_method(self) -> str | None:
        """The method that scores 0: the best method that ignores the context; None if no such method was evaluated."""
        rows = self._all_rows[self._all_rows["contestant"].isin(metric(self.metric).guessing_baselines)]
        return (
            None
            if rows.empty
            else str(means_over_seeds(rows, ["contestant"]).sort_values("value")["contestant"].iloc[-1])
        )

    @cached_property
    def _all_rows(self) -> pd.DataFrame:
        return pd.concat([self.rows, self.hidden_rows]) if len(self.hidden_rows) else self.rows

    @cached_property
    def separation(self) -> Separation | None:
        """The spread over backbones and over seeds; None if there are too few backbones."""
        rows = self.rows[self.rows["kind"].eq("backbone")]
        return separation(rows.set_index(["contestant", "run"])["value"])

    def difference(self, a: str, b: str) -> Difference | None:
        """The mean difference of the scores, a - b, paired by episode and averaged over the common seeds (over all
        seeds if a and b have no seed in common). None if the scores of single episodes or the span are unknown."""
        if (a, b) not in self._differences:
            self._differences[a, b] = self._difference(a, b)
        return self._differences[a, b]

    @cached_property
    def _differences(self) -> dict[tuple[str, str], Difference | None]:
        return {}

    def _difference(self, a: str, b: str) -> Difference | None:
        errors, rows = self.task.results.errors, self._all_rows
        seeds = rows.set_index("run")["seed"]
        runs = {name: sorted(rows.loc[rows["contestant"] == name, "run"]) for name in (a, b)}
        # A lucky seed that only one of the contestants has would bias the difference.
        shared_seeds = set(seeds[runs[a]].dropna()) & set(seeds[runs[b]].dropna())
        if shared_seeds:
            runs = {name: [run for run in all_runs if seeds[run] in shared_seeds] for name, all_runs in runs.items()}
        gap: Difference | None
        if self.evaluator == "next":
            curves = [errors.curves(runs[name], self.prompt_set, self.metric) for name in (a, b)]
            gap = None if curves[0] is None or curves[1] is None else difference(curves[0], curves[1])
        else:
            scores = [errors.targets(runs[name], self.prompt_set, self.metric, 0) for name in (a, b)]
            gap = None if scores[0] is None or scores[1] is None else score_difference(scores[0], scores[1])
        if gap is None or math.isnan(self.span):
            return None
        if metric(self.metric).lower_is_better:
            gap = Difference(-gap.value, -gap.high, -gap.low)
        return Difference(*(end / self.span for end in (gap.value, gap.low, gap.high)))


def presets(results: Results) -> list[str]:
    """The presets that have scores."""
    return list(dict.fromkeys(task.preset for task in results.slices if len(_scores(task))))


def contests(results: Results, preset: str) -> list[Contest]:
    """All contests of a preset, sorted by question or test (`next`, `targets`, `icl` and `iwl`, others) and then by
    title."""
    if preset not in results.contests_by_preset:
        unsorted_contests = [contest for task in results.slices if task.preset == preset for contest in _contests(task)]
        results.contests_by_preset[preset] = sorted(
            unsorted_contests, key=lambda c: (_ORDER.get(c.evaluator, len(_ORDER)), c.title)
        )
    preset_contests: list[Contest] = results.contests_by_preset[preset]
    return preset_contests


def all_scores(all_contests: Sequence[Contest]) -> pd.DataFrame:
    """The scores of all contests in one frame, with a column `family`."""
    return pd.concat([contest.scores.assign(family=contest.family) for contest in all_contests], ignore_index=True)


def _contests(task: Slice) -> list[Contest]:
    contests = []
    for evaluator, rows in without_related(_scores(task)).groupby("evaluator"):
        rows_with_scale = rows[rows["score_of"].notna()]
        scale = rows_with_scale[["score_of", "score_one"]].iloc[0].astype(str) if len(rows_with_scale) else _DEFAULTS
        score_metric, reference = scale
        spans = rows_with_scale["normaliser"].dropna()
        span = float(spans.iloc[0]) if len(spans) else math.nan
        prompt_set = str(next(iter(rows["prompt_set"].dropna()), ""))
        hidden_rows = rows_of(task.results.hidden_rows, task.task, task.preset)
        hidden_rows = hidden_rows[
            hidden_rows["metric"].eq("score")
            & hidden_rows["prompt_set"].eq(prompt_set)
            & hidden_rows["status"].eq("ok")
        ]
        hidden_rows = without_related(hidden_rows[hidden_rows["evaluator"].eq(evaluator) & hidden_rows["axis"].isna()])
        contests.append(Contest(task, str(evaluator), score_metric, reference, span, prompt_set, rows, hidden_rows))
    return contests


def related_scores(task: Slice) -> pd.DataFrame:
    """The scores of a task by number of related datasets, averaged over runs; empty if no prompts have related
    datasets.

    Columns contestant, kind, n_related, value, runs.
    """
    rows = _scores(task)
    rows = rows[rows["n_related"].notna() & rows["evaluator"].isin(QUESTIONS)]
    if not rows["n_related"].gt(0).any():
        return rows.iloc[:0]
    return means_over_seeds(rows, ["contestant", "kind", "n_related"])


def _scores(task: Slice) -> pd.DataFrame:
    """The score rows of single runs on the training distribution. Contestants that were trained on another task or have
    a failed run are omitted. Tests that refine another test are omitted too."""
    rows = task.rows
    is_score = rows["metric"].eq("score") & rows["status"].eq("ok") & rows["shift"].eq("none") & rows["axis"].isna()
    is_measured = ~rows["evaluator"].isin(DIAGNOSTICS) & rows["kind"].ne("published") & rows["trained_on"].isna()
    rows = task.without_failed(rows[is_score & is_measured & rows["n_context"].isna()])
    finer_tests = [evaluator for evaluator in rows["evaluator"].unique() if meaning(str(evaluator)).finer]
    return rows[~rows["evaluator"].isin(finer_tests)]
