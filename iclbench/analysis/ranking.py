"""The order of backbones over all tasks: Wilcoxon's test of paired score differences, corrected by Holm's method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import LEVEL, holm


@dataclass(frozen=True)
class Paired:
    """Scores of two contestants over the same tasks: the mean difference, whether the signed ranks are in favour of the
    first, and the p of Wilcoxon's test."""

    mean: float
    ahead: bool
    p: float

    @classmethod
    def of(cls, a: pd.Series, b: pd.Series) -> Paired:
        """a - b; p is 1 where all differences are zero."""
        from scipy import stats  # takes most of a second, and only grids have rankings

        gaps = (a - b).to_numpy(float)
        nonzero = gaps[gaps != 0]  # as in the test
        ahead = bool(np.sign(nonzero) @ stats.rankdata(np.abs(nonzero)) > 0)
        return cls(float(gaps.mean()), ahead, float(stats.wilcoxon(gaps).pvalue) if gaps.any() else 1.0)


def by_task(contests: Sequence[Contest]) -> pd.DataFrame:
    """Scores of backbones, tasks x contestants; the mean over a task's tests, missing unless it has all of them."""
    parts = []
    for contest in contests:
        own = contest.scores[contest.scores["kind"] == "backbone"]
        parts.append(own.assign(task=contest.task.title, test=contest.evaluator))
    wide = pd.concat(parts).pivot_table("score", index=["task", "test"], columns="contestant")
    return wide.groupby(level="task").mean().where(wide.notna().groupby(level="task").all())


def least_p(tasks: int) -> float:
    """The least p that Wilcoxon's test can have over so many tasks: all differences have one sign."""
    return float(2.0 ** (1 - tasks))


def tell(tasks: int, ranked: int) -> bool:
    """Whether so many tasks can tell any neighbours among so many ranked apart."""
    return least_p(tasks) * (ranked - 1) < LEVEL


def to_rank(scores: pd.DataFrame) -> pd.DataFrame:
    """The tasks to rank on and the backbones that have them all: tasks that at least half of the backbones have a score
    on, since a task of one's own says nothing of the others; where these are too few to tell anybody apart, those of
    the largest group of backbones that have enough in common."""
    shared = scores.notna().sum(axis=1)

    def complete(least: float) -> pd.DataFrame:
        tasks = scores[shared >= least]
        return tasks.loc[:, tasks.notna().all()]

    half = complete(scores.shape[1] / 2)
    if half.shape[1] < 2 or tell(*half.shape):
        return half
    groups = map(complete, sorted(shared.unique(), reverse=True))
    enough = [group for group in groups if group.shape[1] > 1 and tell(*group.shape)]
    return max(enough, key=lambda group: group.shape[1], default=half)


def among(contests: Sequence[Contest], ranked: Sequence[str]) -> pd.DataFrame:
    """A row per backbone that is not ranked, as it lacks tasks: its place among the ranked on the tasks that it shares
    with them, and how it differs there from the one above (below, for the first)."""
    scores, rows = by_task(contests), []
    for name in sorted(set(scores.columns) - set(ranked)):
        own = scores.loc[scores[[*ranked, name]].notna().all(axis=1), [*ranked, name]]
        if own.empty:
            continue
        standing = _standing(own)
        order = list(standing.index)
        place = order.index(name)
        neighbour = order[place - 1] if place else order[1]
        rows.append(
            {
                "contestant": name,
                "tasks": len(own),
                "place": f"{place + 1} of {len(order)}",
                "mean_rank": standing["mean_rank"][name],
                "mean_score": standing["mean_score"][name],
                "neighbour": neighbour,
                "behind": standing["mean_score"][name] - standing["mean_score"][neighbour],
                **_counts([c for c in contests if c.task.title in own.index], str(name), str(neighbour)),
            }
        )
    return pd.DataFrame(rows)


def _standing(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean rank and mean score of every contestant over tasks, the best first."""
    found = pd.DataFrame({"mean_rank": scores.rank(axis=1, ascending=False).mean(), "mean_score": scores.mean()})
    named = found.rename_axis("contestant").reset_index()
    best_first = named.sort_values(["mean_rank", "mean_score", "contestant"], ascending=[True, False, True])
    return best_first.set_index("contestant")


def places(scores: pd.DataFrame, order: Sequence[str]) -> dict[str, tuple[int, int]]:
    """First and last rank that each contestant may have: between those that are significantly better and those
    that are significantly worse."""
    pairs = list(combinations(order, 2))
    found = [Paired.of(scores[a], scores[b]) for a, b in pairs]
    better = dict.fromkeys(order, 0)
    worse = dict.fromkeys(order, 0)
    for (a, b), paired, p in zip(pairs, found, holm([each.p for each in found]), strict=True):
        above, below = (a, b) if paired.ahead else (b, a)
        if p < LEVEL:
            better[below] += 1
            worse[above] += 1
    return {name: (1 + better[name], len(order) - worse[name]) for name in order}


def ranking(contests: Sequence[Contest]) -> tuple[pd.DataFrame, Mapping[str, str]]:
    """A row per backbone, the best mean rank first, and why others are not ranked; empty with fewer than two."""
    everything = by_task(contests)
    scores = to_rank(everything)
    complete, asked = scores.columns, everything.loc[scores.index]
    lacking = {str(name): ", ".join(asked.index[asked[name].isna()]) for name in asked.columns if name not in complete}
    if len(complete) < 2 or len(scores) < 2:
        return pd.DataFrame(), lacking
    standing = _standing(scores)
    order = list(standing.index)
    neighbours = [Paired.of(scores[lower], scores[upper]) for upper, lower in pairwise(order)]
    corrected = holm([each.p for each in neighbours])
    span = places(scores, order)
    frame = pd.DataFrame(
        {
            "contestant": order,
            "rank": [f"{a}–{b}" if a < b else str(a) for a, b in span.values()],
            "mean_rank": standing["mean_rank"].to_numpy(),
            "mean_score": standing["mean_score"].to_numpy(),
            "tasks": len(scores),
            "named": ", ".join(map(str, scores.index)),
            "behind": [np.nan, *(each.mean for each in neighbours)],
            "p": [np.nan, *corrected],
            "p_alone": [np.nan, *(each.p for each in neighbours)],
            "tied": ["", *("told apart" if p < LEVEL else "tied" for p in corrected)],
        }
    )
    of = [contest for contest in contests if contest.task.title in scores.index]
    counts = [_counts(of, lower, upper) for upper, lower in pairwise(order)]
    for column in ("better", "tied_on", "worse"):
        frame[column] = pd.Series([pd.NA, *(each[column] for each in counts)], dtype="Int64")
    return frame, lacking


def _counts(contests: Sequence[Contest], name: str, above: str) -> dict[str, int]:
    gaps = [gap for contest in contests if (gap := contest.difference(name, above)) is not None]
    better, worse = sum(gap.low > 0 for gap in gaps), sum(gap.high < 0 for gap in gaps)
    return {"better": better, "worse": worse, "tied_on": len(gaps) - better - worse}
