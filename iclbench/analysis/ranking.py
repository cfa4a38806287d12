"""The ranking of backbones over all tasks: Wilcoxon's signed-rank test of paired scores, with Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import ERROR_RATE, holm, mean_ranks


@dataclass(frozen=True)
class PairedTest:
    """Wilcoxon's signed-rank test of the scores of two contestants on the same tasks.

    Attributes:
        mean: mean difference.
        is_ahead: whether the sum of signed ranks favours the first contestant.
        p: two-sided p-value; 1 if all differences are zero.
    """

    mean: float
    is_ahead: bool
    p: float

    @classmethod
    def of(cls, a: pd.Series, b: pd.Series) -> PairedTest:
        """Test the differences a - b, which are paired by the index of the series."""
        from scipy import stats  # the import takes most of a second, and only grids have rankings

        gaps = (a - b).to_numpy(float)
        nonzero = gaps[gaps != 0]  # Wilcoxon's test ignores differences of zero
        is_ahead = bool(np.sign(nonzero) @ stats.rankdata(np.abs(nonzero)) > 0)
        return cls(float(gaps.mean()), is_ahead, float(stats.wilcoxon(gaps).pvalue) if gaps.any() else 1.0)


def scores_by_task(contests: Sequence[Contest]) -> pd.DataFrame:
    """Scores of backbones, tasks x contestants. The score on a task is the mean over its tests; it is missing if the
    backbone has no score on one of these tests."""
    frames = [contest.scores.assign(task=contest.task.title, test=contest.evaluator) for contest in contests]
    scores = pd.concat(frames)
    wide = scores[scores["kind"] == "backbone"].pivot_table("score", index=["task", "test"], columns="contestant")
    return wide.groupby(level="task").mean().where(wide.notna().groupby(level="task").all())


def smallest_p(tasks: int) -> float:
    """The smallest possible two-sided p-value of Wilcoxon's test over this number of tasks. It occurs if all
    differences have the same sign."""
    return float(2.0 ** (1 - tasks))


def can_differ(tasks: int, contestants: int) -> bool:
    """Whether two neighbours in a ranking of this size can be significantly different after Holm's correction."""
    return smallest_p(tasks) * (contestants - 1) < ERROR_RATE


def complete_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """The part of `scores_by_task` that is ranked: a subset of the tasks, and the backbones with a score on each of
    these tasks.

    The tasks are those on which at least half of the backbones have a score. If they are too few for any significant
    difference, a smaller group of backbones is ranked instead. Each backbone defines a group: the backbones with scores
    on all tasks on which it has a score. The largest group with enough tasks is ranked, on these tasks.
    """
    has_score = scores.notna()

    def complete_subset(is_task: pd.Series) -> pd.DataFrame:
        tasks = scores[is_task]
        return tasks.loc[:, tasks.notna().all()]

    main_group = complete_subset(has_score.sum(axis=1) >= scores.shape[1] / 2)
    if can_differ(*main_group.shape):
        return main_group
    groups = [complete_subset(has_score[name]) for name in scores]
    large_groups = [group for group in groups if group.shape[1] > 1 and can_differ(*group.shape)]
    return max(large_groups, key=lambda group: (group.shape[1], group.shape[0]), default=main_group)


def unranked_backbones(contests: Sequence[Contest], ranked_backbones: Sequence[str]) -> pd.DataFrame:
    """The backbones that are not ranked because they lack scores on ranked tasks, one per row. A row contains the place
    of the backbone among the ranked backbones, on the tasks that it shares with all of them, and the difference from
    the backbone above it (for the first place, below it)."""
    scores, rows = scores_by_task(contests), []
    for name in sorted(set(scores.columns) - set(ranked_backbones)):
        shared_scores = scores.loc[scores[[*ranked_backbones, name]].notna().all(axis=1), [*ranked_backbones, name]]
        if shared_scores.empty:
            continue
        means = _means(shared_scores)
        order = list(means.index)
        place = order.index(name)
        neighbour = order[place - 1] if place else order[1]
        rows.append(
            {
                "contestant": name,
                "tasks": len(shared_scores),
                "place": f"{place + 1} of {len(order)}",
                "mean_rank": means["mean_rank"][name],
                "mean_score": means["mean_score"][name],
                "neighbour": neighbour,
                "behind": means["mean_score"][name] - means["mean_score"][neighbour],
                **_test_counts([c for c in contests if c.task.title in shared_scores.index], str(name), str(neighbour)),
            }
        )
    return pd.DataFrame(rows)


def _means(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean rank and mean score of every contestant over tasks, the best first."""
    means = pd.DataFrame({"mean_rank": mean_ranks(scores), "mean_score": scores.mean()})
    means = means.rename_axis("contestant").reset_index()
    best_first = means.sort_values(["mean_rank", "mean_score", "contestant"], ascending=[True, False, True])
    return best_first.set_index("contestant")


def rank_ranges(scores: pd.DataFrame, order: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The best and the worst possible rank of each contestant, from the numbers of contestants that are significantly
    better and significantly worse."""
    pairs = list(combinations(order, 2))
    tests = [PairedTest.of(scores[a], scores[b]) for a, b in pairs]
    better_counts = dict.fromkeys(order, 0)
    worse_counts = dict.fromkeys(order, 0)
    for (a, b), test, p in zip(pairs, tests, holm([test.p for test in tests]), strict=True):
        better, worse = (a, b) if test.is_ahead else (b, a)
        if p < ERROR_RATE:
            better_counts[worse] += 1
            worse_counts[better] += 1
    return {name: (1 + better_counts[name], len(order) - worse_counts[name]) for name in order}


def ranking(contests: Sequence[Contest]) -> tuple[pd.DataFrame, Mapping[str, str]]:
    """The ranking over tasks, and the missing tasks of the backbones that are not ranked.

    Returns:
        A frame with a row per backbone, the best mean rank first, with the test against the backbone in the row above;
        empty for fewer than two backbones or tasks. The second value maps each backbone that is not ranked to its
        missing tasks.
    """
    all_scores = scores_by_task(contests)
    scores = complete_scores(all_scores)
    ranked_tasks = all_scores.loc[scores.index].drop(columns=scores.columns)
    missing_tasks = {str(name): ", ".join(column.index[column.isna()]) for name, column in ranked_tasks.items()}
    if len(scores.columns) < 2 or len(scores) < 2:
        return pd.DataFrame(), missing_tasks
    means = _means(scores)
    order = list(means.index)
    tests = [PairedTest.of(scores[lower], scores[upper]) for upper, lower in pairwise(order)]
    corrected_p = holm([test.p for test in tests])
    ranks = rank_ranges(scores, order)
    frame = pd.DataFrame(
        {
            "contestant": order,
            "rank": [f"{first}–{last}" if first < last else str(first) for first, last in ranks.values()],
            "mean_rank": means["mean_rank"].to_numpy(),
            "mean_score": means["mean_score"].to_numpy(),
            "tasks": len(scores),
            "ranked_tasks": ", ".join(map(str, scores.index)),
            "behind": [np.nan, *(test.mean for test in tests)],
            "p": [np.nan, *corrected_p],
            "p_alone": [np.nan, *(test.p for test in tests)],
            "verdict": ["", *(f"{'' if p < ERROR_RATE else 'not '}significantly different" for p in corrected_p)],
        }
    )
    ranked_contests = [contest for contest in contests if contest.task.title in scores.index]
    counts = [_test_counts(ranked_contests, lower, upper) for upper, lower in pairwise(order)]
    for column in ("better", "not_different", "worse"):
        frame[column] = pd.Series([pd.NA, *(row[column] for row in counts)], dtype="Int64")
    return frame, missing_tasks


def _test_counts(contests: Sequence[Contest], name: str, other: str) -> dict[str, int]:
    """The numbers of contests in which a contestant is significantly better than another, significantly worse, or
    neither."""
    gaps = [gap for contest in contests if (gap := contest.difference(name, other)) is not None]
    better, worse = sum(gap.low > 0 for gap in gaps), sum(gap.high < 0 for gap in gaps)
    return {"better": better, "worse": worse, "not_different": len(gaps) - better - worse}
