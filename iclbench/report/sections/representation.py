"""True features in a learned representation of the inputs: R² of a linear map, and figures of features and dimensions.

The figures follow figure 6 of the CoQE paper. Predictions determine a representation only up to an invertible linear
map, so features are reconstructed by regression.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from iclbench.core.formats import fixed, integer, slug
from iclbench.report.blocks import Block, Column, Figure, Section, Table
from iclbench.report.data import Slice
from iclbench.report.drawn_episodes import first_run_rows
from iclbench.report.figures import curves, learning
from iclbench.report.style import DASHES, INK, STRONG, Look
from iclbench.tables.means import means_over_seeds

TRUE_FEATURE = "true feature"
# The true feature has the widest line, which is drawn last.
_TRUE_LOOK = Look(INK, (4, 6), 2.8)


def section(task: Slice) -> Section | None:
    rows = task.rank_and_representation_rows
    rows = rows[(rows["evaluator"] == "representation") & (rows["metric"] == "r_squared")]
    if rows.empty:
        return None
    blocks: list[Block] = [_table(task, rows)]
    if (task.features["role"] == "predicted").any():
        examples = first_run_rows(task.features)
        blocks.append(_feature_figure(task, examples))
        blocks += [
            _dimension_figure(task, str(name), dimensions, examples[examples["role"] == "function"])
            for name, dimensions in examples[examples["role"] == "dimension"].groupby("contestant")
        ]
    return Section(f"{task.id}-representation", "Learned representation", tuple(blocks))


def _table(task: Slice, rows: pd.DataFrame) -> Table:
    """A table with a row per contestant and shift, and a column per true feature."""
    keys = ["shift", "kind", "contestant"]
    means = means_over_seeds(rows, [*keys, "axis", "axis_value"])
    frame = means.groupby(keys, as_index=False).agg(runs=("runs", "max"))
    overall = means[means["axis"].isna()]
    groups = {"mean": ("all features", overall)} if len(overall) else {}
    for index in sorted(int(i) for i in means.loc[means["axis"] == "feature", "axis_value"].unique()):
        groups[f"f{index}"] = (_feature_title(index), means[means["axis_value"] == index])
    for key, (_, group) in groups.items():
        names = {"value": key, "low": f"{key}_low", "high": f"{key}_high"}
        frame = frame.merge(group[[*keys, *names]].rename(columns=names), "left", keys)
    frame = frame.sort_values(["shift", next(iter(groups)), "contestant"], ascending=[True, False, True])
    return Table(
        name=f"{task.id}-representation",
        title=f"{task.task}: true features in the learned representation",
        caption="R² of a linear regression from the learned representation to each true feature, on held-out inputs, "
        "with 95 % intervals over inputs.",
        frame=frame.reset_index(drop=True),
        columns=(
            Column("contestant", "contestant"),
            *((Column("shift", "prompts"),) if len(frame["shift"].unique()) > 1 else ()),
            Column("runs", "seeds", integer, numeric=True),
            *(Column(key, title, fixed, True, f"{key}_low", f"{key}_high") for key, (title, _) in groups.items()),
        ),
    )


def _feature_figure(task: Slice, examples: pd.DataFrame) -> Figure:
    """A figure with a panel per feature: the true feature and its linear reconstruction, against the input."""
    true_rows, fitted_rows = examples[examples["role"] == "function"], examples[examples["role"] == "predicted"]
    lines = pd.concat(
        [fitted_rows.assign(kind="backbone"), true_rows.assign(contestant=TRUE_FEATURE, kind="oracle")],
        ignore_index=True,
    )
    scale = true_rows.groupby("output")["value"].agg(["mean", "std"]).astype(float)
    centre, spread = lines["output"].map(scale["mean"]), lines["output"].map(scale["std"]).replace(0.0, 1.0)
    names = sorted(fitted_rows["contestant"].unique())
    looks = {name: task.looks[name] for name in names} | {TRUE_FEATURE: _TRUE_LOOK}
    scaled_columns = {column: (lines[column].astype(float) - centre) / spread for column in ("value", "low", "high")}
    data = lines.assign(
        **scaled_columns,
        label=lines["contestant"],
        series=lines["contestant"],
        sparse=False,
        width=[looks[name].width for name in lines["contestant"]],
        panel=[_feature_title(int(index) + 1) for index in lines["output"]],
    ).sort_values(["contestant", "x1"], ignore_index=True)
    titles = [_feature_title(int(index) + 1) for index in sorted(lines["output"].unique())]
    axes = curves.Axes(
        "input",
        "feature (standardised)",
        curves.extent(data["x1"]),
        _domain(data["value"]),
        field="x1",
        x_name="input",
        band_name="90 % of inputs",
    )
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", "x1", "panel"]],
        titles,
        axes,
        looks,
        name=f"{task.id}-representation-features",
        title=f"{task.task}: learned against true features",
        caption="True features and their linear reconstruction from the learned representation (first seed), "
        "standardised. Bands: central 90 % over the other directions of the input.",
        alt=f"{task.task}: true features and their reconstruction from the representations of {', '.join(names)}",
    )


def _dimension_figure(task: Slice, contestant: str, dimensions: pd.DataFrame, true_rows: pd.DataFrame) -> Figure:
    """A figure with a panel per feature: all dimensions of one representation and the true feature, along the feature's
    direction."""
    names = [f"dimension {int(k) + 1}" for k in sorted(dimensions["output"].unique())]
    looks = {name: Look(STRONG[k % len(STRONG)], ((), *DASHES)[k // len(STRONG)], 2.2) for k, name in enumerate(names)}
    looks[TRUE_FEATURE] = _TRUE_LOOK
    labels = [names[int(k)] for k in dimensions["output"]]
    dimensions = dimensions.assign(kind="backbone", contestant=labels, feature=dimensions["set"])
    true_rows = true_rows[true_rows["run"].eq(true_rows["run"].iloc[0])].assign(
        kind="oracle", contestant=TRUE_FEATURE, feature=true_rows["output"]
    )
    lines = pd.concat([dimensions, true_rows], ignore_index=True)
    # A dimension has the same scale in all panels, so it is flat in the panel of a feature that it ignores.
    scale = lines["contestant"].where(
        lines["contestant"].ne(TRUE_FEATURE), TRUE_FEATURE + lines["feature"].astype("string")
    )
    spread = lines.groupby(scale)["value"].transform("std").astype(float).replace(0.0, 1.0)
    data = lines.assign(
        value=(lines["value"].astype(float) - lines.groupby(scale)["value"].transform("mean").astype(float)) / spread,
        low=float("nan"),
        high=float("nan"),
        label=lines["contestant"],
        series=lines["contestant"],
        sparse=False,
        width=[looks[name].width for name in lines["contestant"]],
        panel=[_feature_title(int(index) + 1) for index in lines["feature"]],
    ).sort_values(["contestant", "x1"], ignore_index=True)
    titles = [_feature_title(int(index) + 1) for index in sorted(lines["feature"].unique())]
    axes = curves.Axes(
        "input",
        "dimension (standardised)",
        curves.extent(data["x1"]),
        _domain(data["value"]),
        field="x1",
        x_name="input",
    )
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", "x1", "panel"]],
        titles,
        axes,
        looks,
        name=f"{task.id}-representation-dimensions-{slug(contestant)}",
        title=f"{task.task}: dimensions of the representation of {contestant}",
        caption="Dimensions of the learned representation (first seed) and the true feature along its direction, "
        "standardised. The dimensions are defined up to an invertible linear map.",
        alt=f"{task.task}: the {len(names)} dimensions of the representation of {contestant}, and the true features",
    )


def _domain(values: Sequence[float] | pd.Series) -> tuple[float, float]:
    """The range of the values with a margin of 5 %."""
    low, high = float(np.min(values)), float(np.max(values))
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _feature_title(index: int) -> str:
    return f"feature {index}"
