"""Training curves: the loss and other metrics against the training step, one line per run."""

from __future__ import annotations

from dataclasses import replace

from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Figure, Section
from iclbench.report.data import Slice
from iclbench.report.figures import curves


def section(task: Slice) -> Section | None:
    rows = task.rows
    rows = rows[(rows["evaluator"] == "train") & (rows["axis"] == "train_step") & (rows["status"] == "ok")]
    blocks: list[Block] = []
    for name, group in rows.groupby("metric"):
        if not group.duplicated("run").any():
            continue  # a single step per run is not a curve
        measure = metric(str(name))
        # The axis is linear if some values are not positive, such as a negative log-likelihood below 0.
        measure = replace(measure, logarithmic=measure.logarithmic and bool((group["value"] > 0).all()))
        looks = {name: task.looks[name] for name in sorted(group["contestant"].unique())}
        widths = group["contestant"].map({name: look.width for name, look in looks.items()}).astype(float)
        # A line through a single step is invisible without its point.
        has_one_step = group.groupby("run")["axis_value"].transform("size").eq(1)
        data = group.assign(label=group["run"], series=group["run"], width=widths, sparse=has_one_step)
        data = data.sort_values(["run", "axis_value"])[[*curves.COLUMNS, "axis_value"]].reset_index(drop=True)
        axes = curves.Axes(
            "training step",
            measure.label,
            curves.extent(data["axis_value"]),
            curves.domain(data, measure),
            log_y=measure.logarithmic,
            field="axis_value",
            x_name="step",
        )
        make_static, make_live = curves.specifications([("", data)], axes, looks)
        blocks.append(
            Figure(
                name=f"{task.id}-{slug('training', str(name))}",
                title=f"{task.task}: training",
                caption=f"{measure.label.capitalize()} against the training step, one line per run.",
                alt=f"{measure.label} of {', '.join(looks)} against the training step.",
                data=data,
                make_static=make_static,
                make_live=make_live,
                legend=looks,
            )
        )
    return Section(f"{task.id}-training", "Training", tuple(blocks)) if blocks else None
