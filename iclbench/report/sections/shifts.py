"""Errors under shifts of the distribution at evaluation: a panel per shift, with common axes."""

from __future__ import annotations

from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Section
from iclbench.report.data import Slice
from iclbench.report.figures import learning


def section(task: Slice) -> Section | None:
    rows = task.curves_by_run[~task.curves_by_run["shift"].isin(["none", *task.extrapolations])]
    blocks: list[Block] = []
    for (evaluator, metric_name), group in rows.groupby(["evaluator", "metric"]):
        blocks.append(
            learning.figure(
                task,
                {str(shift): shift_rows for shift, shift_rows in group.groupby("shift")},
                name=slug("shifts", str(evaluator), str(metric_name)),
                title=f"{task.task}: shifted prompts",
                caption=f"{metric(str(metric_name)).label.capitalize()} against the number of {task.noun} on shifted "
                "prompts, one panel per shift.",
            )
        )
    return (
        Section(f"{task.id}-shifts", "Shifts", tuple(blocks), rules=("Learning curves", "Normalisation"))
        if blocks
        else None
    )
