"""Figures of layer-wise probes: scores, scale and shift against the layer, and the search for gamma of GD++.

Layers and gradient steps have a common x axis, the share of all layers or steps (Grazzi et al. 2024, figures 3, 4, 5,
11 and 12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from iclbench.core.formats import slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Figure, Panel
from iclbench.report.data import Slice
from iclbench.report.figures import curves
from iclbench.report.style import DASHES, Look

LAYER_AXIS = "share of the layers"
LAYER_AND_STEP_AXIS = "share of the layers (models) or of the steps (GD, GD++)"
# Colours for increasing numbers of examples.
_SIZE_COLOURS = ("#74B3DD", "#2F7FBC", "#0B559F", "#08306B", "#041A3D")
_BAND_CAPTION = " Bands: 95 % intervals over {tasks} tasks"


def part_names(shift: str, name: str, *parts: str) -> str:
    """The name of a figure or table of a score. It contains the name of the score if this is not `squared_error`."""
    return slug("probe", shift, *([] if name == "squared_error" else [name]), *parts)


def score_figure(task: Slice, shift: str, rows: pd.DataFrame, name: str) -> Figure:
    """A figure of a score against depth at one context size. Methods without layers or steps are horizontal lines."""
    n = int(rows["n_context"].iloc[0])
    data = _with_depth(rows[rows["metric"] == name])
    looks = {contestant: task.looks[contestant] for contestant in _legend_order(data)}
    steps = " (of GD and GD++: after each step)" if (data["axis"] == "gd_step").any() else ""
    levels = " Horizontal lines: baselines without layers." if data["axis"].isna().any() else ""
    return _by_depth(
        task,
        data,
        looks,
        part_names(shift, name, "error" if metric(name).lower_is_better else "score"),
        f"{_short_label(name)} by layer",
        name,
        f"{_caption_start(name)}{steps} with {n} {task.noun} in context.{levels}",
    )


def context_figure(task: Slice, shift: str, rows: pd.DataFrame, name: str) -> Figure:
    """A figure of a score against depth, with a panel per run and a line per number of examples."""
    data = _with_depth(rows[(rows["metric"] == name) & (rows["axis"] == "layer")])
    sizes = sorted(int(n) for n in data["n_context"].unique())
    dashes = ((), *DASHES)
    looks = {
        f"{n} {task.noun}": Look(
            _SIZE_COLOURS[i % len(_SIZE_COLOURS)], dashes[i // len(_SIZE_COLOURS) % len(dashes)], 2.2
        )
        for i, n in enumerate(sizes)
    }
    data = data.assign(contestant=[f"{n} {task.noun}" for n in data["n_context"]], width=2.2)
    data["label"] = data["label"] + ", " + data["contestant"]
    data["series"] = data["contestant"]
    return _by_depth(
        task,
        data,
        looks,
        part_names(shift, name, "contexts"),
        f"{_short_label(name)} by layer and number of {task.noun}",
        name,
        f"{_caption_start(name)}, one panel per run, one line per number of {task.noun} in context.",
        panels=sorted(str(run) for run in data["run"].unique()),
    )


def fit_figure(task: Slice, shift: str, rows: pd.DataFrame, name: str) -> Figure:
    """A figure of the fitted scale or shift against depth: the mean over tasks, with the standard deviation as a
    band."""
    keys = ["run", "axis_value"]
    spread = rows[rows["metric"] == f"{name}_std"].set_index(keys)["value"].rename("std")
    data = _with_depth(rows[rows["metric"] == name]).join(spread, on=keys)
    data = data.assign(low=data["value"] - data["std"], high=data["value"] + data["std"])
    # The axis covers quantiles, because fits of single tasks are extreme in early layers.
    ends = pd.concat([data["low"], data["high"]]).astype(float).replace([np.inf, -np.inf], np.nan)
    low, high = ends.quantile([0.1, 0.9])
    margin = 0.05 * (high - low) or 0.5
    looks = {contestant: task.looks[contestant] for contestant in _legend_order(data)}
    n = int(rows["n_context"].iloc[0])
    return _by_depth(
        task,
        data,
        looks,
        slug("probe", shift, name),
        f"{name} by layer",
        name,
        f"The {name} that fits the decoded output of each layer to the true outputs, with {n} examples in context, "
        f"mean over tasks. Calibrated models end at {'1' if name == 'scale' else '0'}.",
        band_caption=" Bands: one standard deviation over {tasks} tasks",
        domain=(low - margin, high + margin),
        band="mean ± std",
    )


def gamma_figure(task: Slice, shift: str, rows: pd.DataFrame) -> Figure:
    """A figure of the error of GD++ after its last step against gamma, with a panel per number of examples and a dot at
    the best gamma."""
    data = rows[rows["axis"] == "gamma"]
    groups = data.groupby(["contestant", "n_context"])["value"]
    looks = {name: task.looks[name] for name in sorted(data["contestant"].unique())}
    data = data.assign(
        label=data["contestant"],
        series=data["contestant"],
        width=[looks[name].width for name in data["contestant"]],
        sparse=data["value"] == groups.transform("min"),
        panel=[f"{n} examples" for n in data["n_context"]],
    )
    best = max(float(data["value"].min()), 1e-12)
    # With the smallest gamma, GD++ is nearly GD. An error of more than twice the error of GD is treated as divergence.
    gd_error = float(data.loc[data["axis_value"] == data["axis_value"].min(), "value"].max())
    axes = curves.Axes(
        "gamma",
        metric("squared_error").label,
        curves.extent(data["axis_value"]),
        (10 ** (np.floor(4 * np.log10(best)) / 4), 2 * max(gd_error, best)),
        log_y=True,
        field="axis_value",
        x_name="gamma",
        log_x=True,
    )
    sizes = data.sort_values("n_context")["panel"].unique().tolist()
    return _figure(
        task,
        data[[*curves.COLUMNS, "axis_value", "panel"]],
        axes,
        looks,
        slug("probe", shift, "gamma"),
        "search for gamma",
        "Mean normalised squared error of GD++ after its last step against gamma, on tasks that only this search uses. "
        "Dots: the best gamma, which the figures above use.",
        "panel",
        sizes,
    )


def _short_label(name: str) -> str:
    return "error" if name == "squared_error" else metric(name).label


def _caption_start(name: str) -> str:
    """The beginning of a caption."""
    if name == "squared_error":
        return "Normalised squared error of the decoded output of each layer"
    label = metric(name).label
    return f"{label[0].upper()}{label[1:]}, decoded linearly from the hidden state after each layer,"


def _with_depth(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the share of layers or steps (`depth`). A row without layers or steps becomes a line from 0 to
    1."""
    steps, without_steps = rows[rows["axis"].notna()], rows[rows["axis"].isna()]
    last = steps.groupby(["run", "n_context"])["axis_value"].transform("max")
    units = steps["axis"].map({"layer": "layer", "gd_step": "step"})
    points = zip(steps["run"], units, steps["axis_value"], last, strict=True)
    labels = [f"{run}, {unit} {int(value)} of {int(end)}" for run, unit, value, end in points]
    line_ends = [without_steps.assign(depth=end, label=without_steps["run"]) for end in (0.0, 1.0)]
    data = pd.concat([steps.assign(depth=steps["axis_value"] / last, label=labels), *line_ends], ignore_index=True)
    # Backbones are drawn last, on top.
    data = data.assign(order=data["kind"].eq("backbone")).sort_values(["order", "run", "depth"], kind="stable")
    return data.assign(series=data["run"], sparse=data["axis"].eq("layer").fillna(False).astype(bool))


def _legend_order(data: pd.DataFrame) -> list[str]:
    """Contestants in the order of the legend: backbones, oracles, baselines."""
    kinds = {"backbone": 0, "oracle": 1, "baseline": 2}
    contestants = data[["contestant", "kind"]].drop_duplicates()
    return (
        contestants.assign(order=contestants["kind"].map(kinds))
        .sort_values(["order", "contestant"])["contestant"]
        .tolist()
    )


def _by_depth(
    task: Slice,
    data: pd.DataFrame,
    looks: Mapping[str, Look],
    name: str,
    title: str,
    metric_name: str,
    caption: str,
    *,
    panels: Sequence[str] = (),
    band_caption: str = _BAND_CAPTION,
    domain: tuple[float, float] | None = None,
    band: str = "interval",
) -> Figure:
    measure = metric(metric_name)
    data = data.assign(width=[looks[contestant].width for contestant in data["contestant"]])
    axes = curves.Axes(
        LAYER_AND_STEP_AXIS if (data["axis"] == "gd_step").any() else LAYER_AXIS,
        measure.label,
        (0.0, 1.0),
        domain or curves.domain(data, measure),
        log_y=measure.logarithmic,
        field="depth",
        x_name="share",
        band_name=band,
    )
    task_count = "the" if data["n_episodes"].isna().all() else int(data["n_episodes"].max())
    caption += band_caption.format(tasks=task_count)
    caption += f"; values outside {axes.domain[0]:.2g} to {axes.domain[1]:.2g} are drawn at the edge."
    columns = [*curves.COLUMNS, "run", "n_context", "depth"]
    return _figure(task, data[columns], axes, looks, name, title, caption, "run", panels)


def _figure(
    task: Slice,
    data: pd.DataFrame,
    axes: curves.Axes,
    looks: Mapping[str, Look],
    name: str,
    title: str,
    caption: str,
    panel_column: str,
    panels: Sequence[str],
) -> Figure:
    """A figure with a panel for each value of `panel_column` in `panels`, or a single panel if `panels` is empty."""
    panel_rows = [(panel, data[data[panel_column] == panel]) for panel in panels] or [("", data)]
    make_static, make_live = curves.specifications(panel_rows, axes, looks)
    return Figure(
        name=f"{task.id}-{name}",
        title=f"{task.task}: {title}",
        caption=caption,
        alt=f"{task.task}: {title}; {axes.y} of {', '.join(looks)} against {axes.x}.",
        data=data.reset_index(drop=True),
        make_static=make_static,
        make_live=make_live,
        panels=tuple(Panel(panel, {panel_column: panel}) for panel in panels) or (Panel(""),),
        legend=looks,
    )
