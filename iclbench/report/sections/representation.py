"""Features in a learned representation of the inputs: R² of a linear map to the true features.

As figure 6 of the CoQE paper: its dimensions as they are, and the features that they hold up to the invertible linear
map that the prediction cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from iclbench.core.formats import fixed, integer, slug
from iclbench.report.blocks import Block, Column, Figure, Section, Table
from iclbench.report.data import Slice
from iclbench.report.drawn_episodes import one_run
from iclbench.report.figures import curves, learning
from iclbench.report.style import DASHES, INK, STRONG, Look
from iclbench.tables.means import over_seeds

TRUE = "true feature"
# The widest line lies on top.
_TRUE = Look(INK, (4, 6), 2.8)


def section(task: Slice) -> Section | None:
    v = task.inside
    rows = v[(v["evaluator"] == "representation") & (v["metric"] == "r_squared")]
    if rows.empty:
        return None
    blocks: list[Block] = [_numbers(task, rows)]
    if (task.features["role"] == "predicted").any():
        drawn = one_run(task.features)
        blocks.append(_figure(task, drawn))
        blocks += [
            _dimensions(task, str(name), rows, drawn[drawn["role"] == "function"])
            for name, rows in drawn[drawn["role"] == "dimension"].groupby("contestant")
        ]
    return Section(f"{task.id}-representation", "Learned representation", tuple(blocks))


def _numbers(task: Slice, rows: pd.DataFrame) -> Table:
    """A row per contestant and shift, a column per true feature."""
    keys = ["shift", "kind", "contestant"]
    means = over_seeds(rows, [*keys, "axis", "axis_value"])
    frame = means.groupby(keys, as_index=False).agg(runs=("runs", "max"))
    overall = means[means["axis"].isna()]
    parts = {"mean": ("all features", overall)} if len(overall) else {}
    for index in sorted(int(i) for i in means.loc[means["axis"] == "feature", "axis_value"].unique()):
        parts[f"f{index}"] = (_feature(index), means[means["axis_value"] == index])
    for key, (_, part) in parts.items():
        names = {"value": key, "low": f"{key}_low", "high": f"{key}_high"}
        frame = frame.merge(part[[*keys, *names]].rename(columns=names), "left", keys)
    frame = frame.sort_values(["shift", next(iter(parts)), "contestant"], ascending=[True, False, True])
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
            *(Column(key, title, fixed, True, f"{key}_low", f"{key}_high") for key, (title, _) in parts.items()),
        ),
    )


def _figure(task: Slice, drawn: pd.DataFrame) -> Figure:
    """A panel per feature: the true one and its linear reconstruction, against the input."""
    true, fitted = drawn[drawn["role"] == "function"], drawn[drawn["role"] == "predicted"]
    both = pd.concat([fitted.assign(kind="backbone"), true.assign(contestant=TRUE, kind="oracle")], ignore_index=True)
    scale = true.groupby("output")["value"].agg(["mean", "std"]).astype(float)
    centre, spread = both["output"].map(scale["mean"]), both["output"].map(scale["std"]).replace(0.0, 1.0)
    names = sorted(fitted["contestant"].unique())
    looks = {name: task.looks[name] for name in names} | {TRUE: _TRUE}
    scaled = {end: (both[end].astype(float) - centre) / spread for end in ("value", "low", "high")}
    data = both.assign(
        **scaled,
        label=both["contestant"],
        series=both["contestant"],
        sparse=False,
        width=[looks[name].width for name in both["contestant"]],
        panel=[_feature(int(index) + 1) for index in both["output"]],
    ).sort_values(["contestant", "x1"], ignore_index=True)
    titles = [_feature(int(index) + 1) for index in sorted(both["output"].unique())]
    axes = curves.Axes(
        "input",
        "feature (standardised)",
        curves.extent(data["x1"]),
        _framed(data["value"]),
        field="x1",
        unit="input",
        band="90 % of inputs",
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
        alt=f"{task.task}: true features and those read off the representations of {', '.join(names)}",
    )


def _dimensions(task: Slice, contestant: str, raw: pd.DataFrame, true: pd.DataFrame) -> Figure:
    """A panel per feature: every dimension of one representation, and the feature, along the feature's direction."""
    names = [f"dimension {int(k) + 1}" for k in sorted(raw["output"].unique())]
    looks = {name: Look(STRONG[k % len(STRONG)], ((), *DASHES)[k // len(STRONG)], 2.2) for k, name in enumerate(names)}
    looks[TRUE] = _TRUE
    lines = raw.assign(kind="backbone", contestant=[names[int(k)] for k in raw["output"]], feature=raw["set"])
    true = true[true["run"].eq(true["run"].iloc[0])].assign(kind="oracle", contestant=TRUE, feature=true["output"])
    both = pd.concat([lines, true], ignore_index=True)
    # A dimension has one scale in all panels, so that one that ignores a feature is flat there.
    scale = both["contestant"].where(both["contestant"].ne(TRUE), TRUE + both["feature"].astype("string"))
    spread = both.groupby(scale)["value"].transform("std").astype(float).replace(0.0, 1.0)
    data = both.assign(
        value=(both["value"].astype(float) - both.groupby(scale)["value"].transform("mean").astype(float)) / spread,
        low=float("nan"),
        high=float("nan"),
        label=both["contestant"],
        series=both["contestant"],
        sparse=False,
        width=[looks[name].width for name in both["contestant"]],
        panel=[_feature(int(index) + 1) for index in both["feature"]],
    ).sort_values(["contestant", "x1"], ignore_index=True)
    titles = [_feature(int(index) + 1) for index in sorted(both["feature"].unique())]
    axes = curves.Axes(
        "input", "dimension (standardised)", curves.extent(data["x1"]), _framed(data["value"]), field="x1", unit="input"
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


def _framed(values: Sequence[float] | pd.Series) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _feature(index: int) -> str:
    return f"feature {index}"
