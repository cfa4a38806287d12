"""More examples than the backbones were trained with: in-distribution, under shifts, and by trained length."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import learning
from iclbench.report.sections.learning_curves import beyond_what_is_taken, numbers
from iclbench.report.titles import IN_DISTRIBUTION


def section(task: Slice) -> Section | None:
    rows = _beyond(task)
    blocks: list[Block] = []
    for (points, evaluator, name), group in rows.groupby(["points", "evaluator", "metric"]):
        label, stem = metric(str(name)).label, slug("points", str(points), str(evaluator), str(name))
        own = group[group["shifted"] == IN_DISTRIBUTION]
        if len(own):
            blocks.append(
                learning.figure(
                    task,
                    {IN_DISTRIBUTION: own},
                    name=stem,
                    title=f"{task.task}: up to {points} examples",
                    caption=f"{label.capitalize()} with up to {points} examples in context.{_ends(task, own)}",
                )
            )
            blocks.append(numbers(task, _curves(task, own), stem, label))
        if len(own) < len(group):
            blocks.append(_under_shifts(task, group, str(points), stem, label))
    if task is task.siblings[0]:
        blocks += _by_trained_length(task)
    return Section(f"{task.id}-extrapolation", "Extrapolation", tuple(blocks)) if blocks else None


def _under_shifts(task: Slice, rows: pd.DataFrame, points: str, stem: str, label: str) -> Figure:
    """A panel in-distribution, and one for each shift."""
    names = sorted(set(rows["shifted"]), key=lambda name: (name != IN_DISTRIBUTION, name))
    return learning.figure(
        task,
        {name: rows[rows["shifted"] == name] for name in names},
        name=f"shifted-{stem}",
        title=f"{task.task}: up to {points} examples under shifts",
        caption=f"{label.capitalize()} with up to {points} examples in context, one panel per distribution of the "
        f"prompts.{_ends(task, rows)}",
    )


def _by_trained_length(task: Slice) -> list[Figure]:
    """Where runs were trained with different numbers of examples: in-distribution, a panel for each number."""
    slices = {f"trained with {one.length} examples": one for one in task.siblings if one.length is not None}
    if not slices:
        return []
    parts = [_beyond(one).assign(panel=panel) for panel, one in slices.items()]
    rows = pd.concat(parts, ignore_index=True)
    figures = []
    for (points, evaluator, name), group in rows[rows["shifted"] == IN_DISTRIBUTION].groupby(
        ["points", "evaluator", "metric"]
    ):
        panels = {panel: own for panel in slices if len(own := group[group["panel"] == panel])}
        if len(panels) > 1:
            label = metric(str(name)).label
            figures.append(
                learning.figure(
                    task,
                    panels,
                    name=slug("by-trained-length", "points", str(points), str(evaluator), str(name)),
                    title=f"{task.task}: up to {points} examples, by trained length",
                    caption=f"{label.capitalize()} with up to {points} examples in context, one panel for each number "
                    f"of examples in training.{_ends(replace(task, length=None), group)}",
                    slices=slices,
                )
            )
    return figures


def _ends(task: Slice, rows: pd.DataFrame) -> str:
    """The models whose lines end before those of the others, in a sentence."""
    names = beyond_what_is_taken(task, rows)
    return f" Shorter lines: models that support no more examples ({', '.join(names)})." if names else ""


def _beyond(task: Slice) -> pd.DataFrame:
    """The extrapolated lines, with the number of examples and the name of the shift."""
    rows = task.curves_by_run[task.curves_by_run["shift"].isin(list(task.extrapolations))]
    parts = [task.extrapolations[str(shift)] for shift in rows["shift"]]
    shifted = [IN_DISTRIBUTION if left == "none" else left for left, _ in parts]
    return rows.assign(shifted=shifted, points=[n for _, n in parts])


def _curves(task: Slice, rows: pd.DataFrame) -> pd.DataFrame:
    """The same curves averaged over runs."""
    c, one = task.curves, rows.iloc[0]
    return c[(c["shift"] == one["shift"]) & (c["evaluator"] == one["evaluator"]) & (c["metric"] == one["metric"])]
