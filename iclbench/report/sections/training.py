"""The training loss against the step: one line per run."""

from __future__ import annotations

from dataclasses import replace

from iclbench.core.formats import plural, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import curves


def section(task: Slice) -> Section | None:
    v = task.rows
    rows = v[(v["evaluator"] == "train") & (v["axis"] == "train_step") & (v["status"] == "ok")]
    blocks: list[Block] = []
    for name, group in rows.groupby("metric"):
        measure = metric(str(name))
        # A negative log-likelihood falls below zero.
        measure = replace(measure, logarithmic=measure.logarithmic and bool((group["value"] > 0).all()))
        looks = {n: task.looks[n] for n in sorted(group["contestant"].unique())}
        widths = group["contestant"].map({contestant: look.width for contestant, look in looks.items()}).astype(float)
        # A line through a single step could not be seen.
        alone = group.groupby("run")["axis_value"].transform("size").eq(1)
        data = group.assign(label=group["run"], series=group["run"], width=widths, sparse=alone)
        data = data.sort_values(["run", "axis_value"])[[*curves.COLUMNS, "axis_value"]].reset_index(drop=True)
        axes = curves.Axes(
            "training step",
            measure.label,
            curves.extent(data["axis_value"]),
            curves.domain(data, measure),
            log=measure.logarithmic,
            field="axis_value",
            unit="step",
        )
        make_static, make_live = curves.specifications([("", data)], axes, looks)
        blocks.append(
            Figure(
                name=f"{task.id}-{slug('training', str(name))}",
                title=f"{task.task}: training",
                caption=f"{measure.label.capitalize()} against the training step; one line for each of "
                f"{plural(int(group['run'].nunique()), 'run')}.",
                alt=f"{measure.label} of {', '.join(looks)} against the training step.",
                data=data,
                make_static=make_static,
                make_live=make_live,
                legend=looks,
            )
        )
    return Section(f"{task.id}-training", "Training", tuple(blocks)) if blocks else None
