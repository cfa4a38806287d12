"""Distances of models from known solutions of a task, during training."""

from __future__ import annotations

import pandas as pd

from iclbench.core.metrics import KL_TO, metric
from iclbench.report.blocks import Figure, Section, Text
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.tables.evaluators import SOLUTIONS
from iclbench.tables.means import means_over_seeds

_INTRODUCTION = (
    "KL divergence of each model from known solutions of the task, against the training step. It is 0 for a model that "
    "predicts like the solution."
)
_KEYS = ["evaluator", "metric", "kind", "contestant", "axis_value"]
# Smaller divergences are drawn at this value, since the axis is logarithmic.
_SMALLEST = 1e-4


def section(task: Slice) -> Section | None:
    steps = trajectory(task)
    if steps["axis_value"].nunique() < 2:
        return None
    return Section(f"{task.id}-solutions", "Solutions during training", (Text(_INTRODUCTION), _figure(task, steps)))


def trajectory(task: Slice) -> pd.DataFrame:
    """The divergences, averaged over runs, at the steps at which every run of a model was measured."""
    rows = task.rows[task.rows["evaluator"].eq(SOLUTIONS) & task.rows["axis"].eq("train_step").fillna(False)]
    steps = means_over_seeds(rows, _KEYS)
    all_runs = steps.groupby(["metric", "contestant"])["runs"].transform("max")
    return steps[steps["runs"] == all_runs].reset_index(drop=True)


def _figure(task: Slice, steps: pd.DataFrame) -> Figure:
    """A figure with one panel per solution and a line per model, with the range over its runs as a band."""
    steps = steps.assign(
        low=steps["lowest"].where(steps["runs"] > 1, steps["low"]),
        high=steps["highest"].where(steps["runs"] > 1, steps["high"]),
        panel=[metric(name).label for name in steps["metric"]],
        label=steps["contestant"],
        series=steps["contestant"],
        sparse=True,
    )
    steps = steps.assign(**{name: steps[name].clip(lower=_SMALLEST) for name in ("value", "low", "high")})
    looks = {name: task.looks[name] for name in sorted(steps["contestant"].unique())}
    data = steps.assign(width=[looks[name].width for name in steps["contestant"]])
    data = data.sort_values(["panel", "contestant", "axis_value"], ignore_index=True)
    axes = curves.Axes(
        "training step",
        "KL divergence (nats)" if all(name.startswith(KL_TO) for name in steps["metric"]) else "distance",
        curves.extent(data["axis_value"]),
        (float(data["value"].min()) / 1.3, float(data["value"].max()) * 1.3),
        log_y=True,
        field="axis_value",
        x_name="step",
        band_name="seeds or interval",
    )
    metrics = task.rows.loc[task.rows["evaluator"].eq(SOLUTIONS), "metric"]
    panels = [metric(str(name)).label for name in metrics.drop_duplicates()]  # in the order of the task card
    looks = learning.sorted_by_line_ends(looks, data, "axis_value")
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", "axis_value", "panel"]],
        panels,
        axes,
        looks,
        name=f"{task.id}-solutions",
        title=f"{task.name}: distance from known solutions during training",
        caption="KL(solution || model) in nats per scored element. Bands: range over seeds, or the 95 % interval over "
        "episodes for one seed.",
        alt=f"{task.name}: KL divergence of {learning.name_list(looks)} from known solutions against the training step",
    )
