"""Normalised scores over all families of one preset: the numbers behind heat map, ranking and Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from iclbench.analysis.evaluators import meaning
from iclbench.analysis.pairs import Difference, difference, score_difference
from iclbench.analysis.separation import Separation, separation
from iclbench.analysis.slices import Results, Slice
from iclbench.core.metrics import metric
from iclbench.tables.evaluators import INSIDE, QUESTIONS
from iclbench.tables.means import over_seeds
from iclbench.tables.related import without_related

# Of a family with several tests these two stand for all: they ask for learning in context and in weights.
_TESTS = ("icl", "iwl")
# The metric and what scores 1, where no row of a score says so.
_OLD = ("squared_error", "the oracle, or the best baseline")
_ORDER = {name: min(i, 2) for i, name in enumerate((*QUESTIONS, *_TESTS))}


@dataclass(frozen=True)
class Contest:
    """What one number per contestant is about: a task, or one test of it.

    Attributes:
        task: the slice of the results.
        evaluator: the question or test.
        metric: what the score is made of.
        one: what scores 1.
        span: how far 0 and 1 are apart in the metric; NaN where no row of a score says so.
        prompt_set: what everybody was asked.
        rows: the score rows, run by run.
    """

    task: Slice
    evaluator: str
    metric: str
    one: str
    span: float
    prompt_set: str
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        test = "" if self.evaluator in QUESTIONS else f" · {meaning(self.evaluator).title}"
        return f"{self.task.name}{test}"

    @property
    def family(self) -> str:
        return str(self.rows["family"].iloc[0])

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row per contestant: the mean over runs (seeds), `lowest` and `highest` of them, the envelope of their
        intervals, how many `runs` and, in `run`, which."""
        found = over_seeds(self.rows, ["contestant", "kind"]).rename(columns={"value": "score"})
        numbers = ["score", "lowest", "highest", "low", "high"]
        return found.astype(dict.fromkeys(numbers, float)).assign(row=self.title)

    @cached_property
    def guess(self) -> str | None:
        """The method that scores 0: the best of those that ignore the context; None if none of them was evaluated."""
        asked = self.scores[self.scores["contestant"].isin(metric(self.metric).guesses)]
        return None if asked.empty else str(asked.sort_values("score")["contestant"].iloc[-1])

    @cached_property
    def separation(self) -> Separation | None:
        """How far its backbones are apart, against how far their seeds are; None where there are too few."""
        rows = self.rows[self.rows["kind"].eq("backbone")]
        return separation(rows.set_index(["contestant", "run"])["value"])

    def difference(self, a: str, b: str) -> Difference | None:
        """By how much a's score is above b's, paired by episode over all that both were asked and averaged over the
        seeds that both have (all, where they share none); None where single episodes are not kept."""
        if (a, b) not in self._known:
            self._known[a, b] = self._difference(a, b)
        return self._known[a, b]

    @cached_property
    def _known(self) -> dict[tuple[str, str], Difference | None]:
        return {}

    def _difference(self, a: str, b: str) -> Difference | None:
        errors, seeds = self.task.results.errors, self.rows.set_index("run")["seed"]
        runs = {name: sorted(self.rows.loc[self.rows["contestant"] == name, "run"]) for name in (a, b)}
        # Whoever was trained from further seeds, which may be luckier, is compared on those of the other.
        shared = set(seeds[runs[a]].dropna()) & set(seeds[runs[b]].dropna())
        if shared:
            runs = {name: [run for run in own if seeds[run] in shared] for name, own in runs.items()}
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
    """All contests of a preset: sequence regression, then sets of targets, then tests, each by name."""
    if preset not in results.known_contests:
        found = [contest for task in results.slices if task.preset == preset for contest in _contests(task)]
        results.known_contests[preset] = sorted(found, key=lambda c: (_ORDER.get(c.evaluator, len(_ORDER)), c.title))
    known: list[Contest] = results.known_contests[preset]
    return known


def left_out(everybody: Iterable[str], shown: Iterable[str]) -> str:
    """The names that are not shown because a row is missing, in a sentence; empty if all are shown."""
    names = sorted({*everybody} - {*shown})
    return f" Not shown, as a row is missing: {', '.join(names)}." if names else ""


def all_scores(all_contests: Sequence[Contest]) -> pd.DataFrame:
    """The scores of all contests, one below the other."""
    return pd.concat([contest.scores.assign(family=contest.family) for contest in all_contests], ignore_index=True)


def _contests(task: Slice) -> list[Contest]:
    rows = without_related(_scores(task))
    found = []
    for evaluator, own in rows.groupby("evaluator"):
        said = own[own["score_of"].notna()]
        of, one = said[["score_of", "score_one"]].iloc[0].astype(str) if len(said) else _OLD
        spans = said["normaliser"].dropna()
        span = float(spans.iloc[0]) if len(spans) else math.nan
        prompt_set = str(next(iter(own["prompt_set"].dropna()), ""))
        found.append(Contest(task, str(evaluator), of, one, span, prompt_set, own))
    return found


def related(task: Slice) -> pd.DataFrame:
    """The scores of a task at every number of related datasets, averaged over runs; empty where there are none.

    Columns contestant, kind, n_related, value, runs.
    """
    rows = _scores(task)
    rows = rows[rows["n_related"].notna() & rows["evaluator"].isin(QUESTIONS)]
    if not rows["n_related"].gt(0).any():
        return rows.iloc[:0]
    return over_seeds(rows, ["contestant", "kind", "n_related"])


def _scores(task: Slice) -> pd.DataFrame:
    """Score rows of the training distribution, run by run, of contestants that were trained on it and none of whose
    runs failed; of several tests those that stand for all."""
    v = task.rows
    of_score = v["metric"].eq("score") & v["status"].eq("ok") & v["shift"].eq("none") & v["axis"].isna()
    outside = ~v["evaluator"].isin(INSIDE) & v["kind"].ne("published") & v["trained_on"].isna()
    rows = task.unfailed(v[of_score & outside & v["n_context"].isna()])
    finer = [evaluator for evaluator in rows["evaluator"].unique() if meaning(str(evaluator)).finer]
    return rows[~rows["evaluator"].isin(finer)]
