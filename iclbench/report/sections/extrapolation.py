"""Extrapolation to more examples than in training: in-distribution, under shifts, and by training length."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import learning
from iclbench.report.sections.learning_curves import curve_table, size_limited_contestants
from iclbench.report.titles import IN_DISTRIBUTION


def section(task: Slice) -> Section | None:
    rows = _extrapolated_lines(task)
    blocks: list[Block] = []
    for (points, evaluator, name), group in rows.groupby(["points", "evaluator", "metric"]):
        label, stem = metric(str(name)).label, slug("points", str(points), str(evaluator), str(name))
        unshifted = group[group["shifted"] == IN_DISTRIBUTION]
        if len(unshifted):
            blocks.append(
                learning.figure(
                    task,
                    {IN_DISTRIBUTION: unshifted},
                    name=stem,
                    title=f"{task.task}: up to {points} {task.noun}",
                    caption=f"{label.capitalize()} with up to {points} {task.noun} in context."
                    f"{_shorter_lines(task, unshifted)}",
                )
            )
            blocks.append(curve_table(task, _curves(task, unshifted), stem, label))
        if len(unshifted) < len(group):
            blocks.append(_under_shifts(task, group, str(points), stem, label))
    if task is task.siblings[0]:
        blocks += _by_trained_length(task)
    return (
        Section(f"{task.id}-extrapolation", "Extrapolation", tuple(blocks), rules=("Learning curves", "Normalisation"))
        if blocks
        else None
    )


def _under_shifts(task: Slice, rows: pd.DataFrame, points: str, stem: str, label: str) -> Figure:
    """A figure with a panel for the training distribution and one for each shift."""
    names = sorted(set(rows["shifted"]), key=lambda name: (name != IN_DISTRIBUTION, name))
    return learning.figure(
        task,
        {name: rows[rows["shifted"] == name] for name in names},
        name=f"shifted-{stem}",
        title=f"{task.task}: up to {points} {task.noun} under shifts",
        caption=f"{label.capitalize()} with up to {points} {task.noun} in context, one panel per distribution of the "
        f"prompts.{_shorter_lines(task, rows)}",
    )


def _by_trained_length(task: Slice) -> list[Figure]:
    """In-distribution figures with a panel for each number of examples in training; empty if all runs have the same
    number."""
    slices = {
        f"trained with {sibling.length} {task.noun}": sibling for sibling in task.siblings if sibling.length is not None
    }
    if not slices:
        return []
    lines = [_extrapolated_lines(sibling).assign(panel=panel) for panel, sibling in slices.items()]
    rows = pd.concat(lines, ignore_index=True)
    figures = []
    for (points, evaluator, name), group in rows[rows["shifted"] == IN_DISTRIBUTION].groupby(
        ["points", "evaluator", "metric"]
    ):
        panels = {panel: in_panel for panel in slices if len(in_panel := group[group["panel"] == panel])}
        if len(panels) > 1:
            label = metric(str(name)).label
            figures.append(
                learning.figure(
                    task,
                    panels,
                    name=slug("by-trained-length", "points", str(points), str(evaluator), str(name)),
                    title=f"{task.task}: up to {points} {task.noun}, by training length",
                    caption=f"{label.capitalize()} with up to {points} {task.noun} in context, one panel for each "
                    f"number of {task.noun} in training.{_shorter_lines(replace(task, length=None), group)}",
                    slices=slices,
                )
            )
    return figures


def _shorter_lines(task: Slice, rows: pd.DataFrame) -> str:
    """A sentence that names the models that support fewer examples than the figure shows; empty without such models."""
    names = size_limited_contestants(task, rows)
    return f" Lines end early for models that support fewer {task.noun} ({', '.join(names)})." if names else ""


def _extrapolated_lines(task: Slice) -> pd.DataFrame:
    """Rows of curves that extend beyond the training length, with columns for the number of examples (`points`) and the
    distribution (`shifted`)."""
    rows = task.curves_by_run[task.curves_by_run["shift"].isin(list(task.extrapolations))]
    shifts_and_points = [task.extrapolations[str(shift)] for shift in rows["shift"]]
    distributions = [IN_DISTRIBUTION if shift == "none" else shift for shift, _ in shifts_and_points]
    return rows.assign(shifted=distributions, points=[n for _, n in shifts_and_points])


def _curves(task: Slice, rows: pd.DataFrame) -> pd.DataFrame:
    """The curves of these rows, averaged over runs."""
    curves, first = task.curves, rows.iloc[0]
    has_same_prompts = curves["shift"].eq(first["shift"]) & curves["evaluator"].eq(first["evaluator"])
    return curves[has_same_prompts & curves["metric"].eq(first["metric"])]
