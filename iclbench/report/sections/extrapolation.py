"""More examples than the backbones were trained with."""

from __future__ import annotations

from iclbench.report.blocks import Block, Section
from iclbench.report.data import EXTRAPOLATION, Slice
from iclbench.report.figures import learning
from iclbench.report.formats import slug
from iclbench.report.metrics import metric


def section(task: Slice) -> Section | None:
    rows = task.curves[task.curves["shift"].str.fullmatch(EXTRAPOLATION)]
    blocks: list[Block] = []
    for (shift, evaluator, name), group in rows.groupby(["shift", "evaluator", "metric"]):
        points = str(shift).removeprefix("points-")
        blocks.append(
            learning.figure(
                task, group, [str(shift)], name=slug(str(shift), str(evaluator), str(name)),
                title=f"{task.task}: up to {points} examples",
                caption=f"{metric(str(name)).label.capitalize()} with up to {points} examples in context.",
            )
        )  # fmt: skip
    return Section(f"{task.id}-extrapolation", "Extrapolation", tuple(blocks)) if blocks else None
