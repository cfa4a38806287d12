"""The order of backbones over all families, with ties: paired tests between neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import LEVEL, holm
from iclbench.core.formats import fixed, integer, number, plural, signed, slug
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results

_READING = (
    "Ranked are backbones with a score on every task that at least half of them have or, where these are too few to "
    "tell anybody apart, the largest group with tasks enough in common; the two tests of a task count as one, by their "
    "mean. The test takes tasks as the units, since they are what a ranking generalises over: Wilcoxon's "
    "signed-rank test of the paired score differences (two-sided; exact where no two are alike), which assumes no "
    "normal distribution and does not let one task with huge differences decide. To the row above: the mean difference "
    "of scores, and its p corrected by Holm's method for the number of neighbours; from 0.05 on the two are tied. "
    "Rank: the places that all pairs of backbones leave possible, corrected by Holm for all pairs. Better, tied, "
    "worse: on how many tasks or tests the row is told apart from the one above by a paired 95 % interval over "
    "the episodes of the same prompts, without correction; seeds are averaged first, so that this does not cover "
    "the choice of seed."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        blocks += _of_preset(preset, normalised.contests(results, preset))
    return Section("ranking", "Ranking", (Text(_READING), *blocks)) if blocks else None


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


def _of_preset(preset: str, contests: Sequence[Contest]) -> list[Block]:
    if not any(contest.rows["kind"].eq("backbone").any() for contest in contests):
        return []
    frame, lacking = ranking(contests)
    if frame.empty:
        return []
    name = f"ranking-{slug(preset)}"
    tasks = int(frame["tasks"].iloc[0])
    blocks: list[Block] = [
        Table(
            name=name,
            title=f"{preset}: ranking of backbones",
            caption=f"Preset {preset}: {plural(tasks, 'task')} ({frame['named'].iloc[0]}). Mean rank: among the "
            "ranked, 1 is best. Score: as in the heat map, the mean over tasks."
            + (not tell(tasks, len(frame)))
            * f" So few tasks cannot tell neighbours apart: p is at least {least_p(tasks):.2g}, corrected "
            f"{min(1.0, least_p(tasks) * (len(frame) - 1)):.2g}.",
            frame=frame,
            columns=(
                Column("contestant", "backbone"),
                Column("rank", "rank", numeric=True),
                Column("mean_rank", "mean rank", _two, numeric=True),
                Column("mean_score", "mean score", fixed, numeric=True),
                Column("behind", "to the row above", signed, numeric=True),
                Column("p", "p (Holm)", number, numeric=True),
                Column("tied", "neighbours"),
                Column("better", "better on", integer, numeric=True),
                Column("tied_on", "tied on", integer, numeric=True),
                Column("worse", "worse on", integer, numeric=True),
            ),
        ),
        _neighbours(contests, frame["contestant"].tolist(), name, preset),
    ]
    if len(beside := among(contests, frame["contestant"].tolist())):
        blocks.append(_beside(beside, name, preset))
    if lacking:
        alike: dict[str, list[str]] = {}
        for who, where in sorted(lacking.items()):
            alike.setdefault(where, []).append(who)
        lines = tuple(f"{', '.join(names)}: no score on {where}" for where, names in alike.items())
        blocks.append(Text(f"Not ranked at preset {preset}:", lines))
    return blocks


def _beside(frame: pd.DataFrame, name: str, preset: str) -> Table:
    return Table(
        name=f"{name}-shared",
        title=f"{preset}: others among the ranked, on the tasks they share",
        caption=f"Preset {preset}. Backbones without a score on every task: the place that each has among the "
        "ranked on the tasks that it shares with all of them, by mean rank there. Neighbour: the one above (of the "
        "first, the one below); better, tied, worse: on how many of these tasks or tests it is told apart from the "
        "neighbour, as above.",
        frame=frame,
        columns=(
            Column("contestant", "backbone"),
            Column("tasks", "shared tasks", integer, numeric=True),
            Column("place", "place", numeric=True),
            Column("mean_rank", "mean rank", _two, numeric=True),
            Column("mean_score", "mean score", fixed, numeric=True),
            Column("neighbour", "neighbour"),
            Column("behind", "to the neighbour", signed, numeric=True),
            Column("better", "better on", integer, numeric=True),
            Column("tied_on", "tied on", integer, numeric=True),
            Column("worse", "worse on", integer, numeric=True),
        ),
    )


def _neighbours(contests: Sequence[Contest], order: Sequence[str], name: str, preset: str) -> Table:
    """A row per task or test: how far everybody is from the row above."""
    rows = []
    for contest in contests:
        row: dict[str, object] = {"row": contest.title}
        for above, own in pairwise(order):
            gap = contest.difference(own, above)
            row |= {own: gap.value, f"{own} low": gap.low, f"{own} high": gap.high} if gap else {own: None}
        rows.append(row)
    keys = ["row", *(key for own in order[1:] for key in (own, f"{own} low", f"{own} high"))]
    return Table(
        name=f"{name}-neighbours",
        title=f"{preset}: neighbours, task by task",
        caption="Score of the named backbone minus that of the one ranked above it: paired differences over the "
        "episodes of the same prompts, averaged over the seeds that both have, with their 95 % interval (Student's t). "
        "A dash: no single episodes of both.",
        frame=pd.DataFrame(rows).reindex(columns=keys),
        columns=(
            Column("row", "family"),
            *(Column(b, f"{b} − {a}", signed, True, f"{b} low", f"{b} high") for a, b in pairwise(order)),
        ),
        folded=True,
    )


def _two(value: float) -> str:
    return fixed(value, 2)
