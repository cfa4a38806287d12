"""Ranking of models over all tasks, and differences between neighbours by task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.ranking import can_differ, ranking, smallest_p, unranked_backbones
from iclbench.core.formats import fixed, integer, number, plural, signed, slug, two_decimals
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results

_INTRODUCTION = (
    "Models in the order of their mean rank over tasks. Neighbours are compared by Wilcoxon's signed-rank test over "
    "tasks, with p-values corrected by Holm's method."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        blocks += _preset_blocks(preset, normalised.contests(results, preset))
    return (
        Section("ranking", "Ranking", (Text(_INTRODUCTION), *blocks), rules=("Ranking over tasks",)) if blocks else None
    )


def _preset_blocks(preset: str, contests: Sequence[Contest]) -> list[Block]:
    if not any(contest.rows["kind"].eq("backbone").any() for contest in contests):
        return []
    frame, missing_tasks = ranking(contests)
    if frame.empty:
        return []
    name = f"ranking-{slug(preset)}"
    tasks = int(frame["tasks"].iloc[0])
    blocks: list[Block] = [
        Table(
            name=name,
            title=f"{preset}: ranking of models",
            caption=f"Mean rank and mean score of each model over {plural(tasks, 'task')} of preset {preset}, and "
            "the number of tasks or tests on which it is significantly better or worse than the model above."
            + (not can_differ(tasks, len(frame)))
            * " With so few tasks, no two neighbours can be significantly different (smallest possible p: "
            f"{min(1.0, smallest_p(tasks) * (len(frame) - 1)):.2g}).",
            frame=frame,
            columns=(
                Column("contestant", "model"),
                Column("rank", "rank", numeric=True),
                Column("mean_rank", "mean rank", two_decimals, numeric=True),
                Column("mean_score", "mean score", fixed, numeric=True),
                Column("behind", "difference from the row above", signed, numeric=True),
                Column("p", "p (Holm)", number, numeric=True),
                Column("verdict", "test"),
                Column("better", "better on", integer, numeric=True),
                Column("not_different", "not different on", integer, numeric=True),
                Column("worse", "worse on", integer, numeric=True),
            ),
        ),
        Text(f"Tasks of the ranking at preset {preset}", (str(frame["ranked_tasks"].iloc[0]),), folded=True),
        _neighbour_table(contests, frame["contestant"].tolist(), name, preset),
    ]
    if len(others := unranked_backbones(contests, frame["contestant"].tolist())):
        blocks.append(_unranked_table(others, name, preset))
    if missing_tasks:
        by_tasks: dict[str, list[str]] = {}
        for contestant, tasks_text in sorted(missing_tasks.items()):
            by_tasks.setdefault(tasks_text, []).append(contestant)
        lines = tuple(f"{', '.join(names)}: no score on {tasks_text}" for tasks_text, names in by_tasks.items())
        blocks.append(Text(f"Not ranked at preset {preset}:", lines))
    return blocks


def _unranked_table(frame: pd.DataFrame, name: str, preset: str) -> Table:
    return Table(
        name=f"{name}-shared",
        title=f"{preset}: other models on shared tasks",
        caption=f"Models that lack tasks of preset {preset}: their place among the ranked models, on the tasks that "
        "they share with all of these. The neighbour is the model above or, for the first place, the model below.",
        frame=frame,
        columns=(
            Column("contestant", "model"),
            Column("tasks", "shared tasks", integer, numeric=True),
            Column("place", "place", numeric=True),
            Column("mean_rank", "mean rank", two_decimals, numeric=True),
            Column("mean_score", "mean score", fixed, numeric=True),
            Column("neighbour", "neighbour"),
            Column("behind", "difference from the neighbour", signed, numeric=True),
            Column("better", "better on", integer, numeric=True),
            Column("not_different", "not different on", integer, numeric=True),
            Column("worse", "worse on", integer, numeric=True),
        ),
    )


def _neighbour_table(contests: Sequence[Contest], order: Sequence[str], name: str, preset: str) -> Table:
    """A table with a row per task or test: the difference of each model from the model above it in `order`."""
    rows = []
    for contest in contests:
        row: dict[str, object] = {"row": contest.title}
        for above, model in pairwise(order):
            gap = contest.difference(model, above)
            row |= {model: gap.value, f"{model} low": gap.low, f"{model} high": gap.high} if gap else {model: None}
        rows.append(row)
    keys = ["row", *(key for model in order[1:] for key in (model, f"{model} low", f"{model} high"))]
    return Table(
        name=f"{name}-neighbours",
        title=f"{preset}: differences between neighbours by task",
        caption="The score of each model minus the score of the model ranked above it, with paired 95 % intervals over "
        "episodes. A dash: no common episodes.",
        frame=pd.DataFrame(rows).reindex(columns=keys),
        columns=(
            Column("row", "family"),
            *(Column(b, f"{b} − {a}", signed, True, f"{b} low", f"{b} high") for a, b in pairwise(order)),
        ),
        folded=True,
    )
