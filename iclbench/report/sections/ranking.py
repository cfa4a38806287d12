"""The ranking of backbones over all families, and differences between neighbours task by task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.ranking import among, least_p, ranking, tell
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
