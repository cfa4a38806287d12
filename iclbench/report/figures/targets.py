"""Figures of scores of the question `targets`: lines over the number of related datasets or of context points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from iclbench.core.metrics import Metric, metric
from iclbench.report.blocks import Figure
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.style import BACKGROUND, Look
from iclbench.tables.means import over_seeds


@dataclass(frozen=True)
class Across:
    """What lies on the x axis: the column, its title, its word in tooltips, the values marked on it."""

    field: str
    title: str
    unit: str
    ticks: tuple[float, ...] = ()
    log: bool = False


def related(counts: list[int]) -> Across:
    """The number of related datasets."""
    return Across("n_related", "related datasets", "related datasets", tuple(float(n) for n in counts))


def figure(
    task: Slice, panels: Mapping[str, pd.DataFrame], across: Across, *, name: str, title: str, caption: str
) -> Figure:
    """One panel per title, all with the same axes. The frames are rows of one metric, run by run, with the columns of
    `Slice.targets_by_run` and the column that `across` names.

    Every run has its line; a backbone with a single run has a band of its 95 % interval. Where backbones are a crowd,
    each has one line without a band, the mean over its runs.
    """
    rows = pd.concat(panels.values(), ignore_index=True)
    if crowd := learning.is_crowd(rows):
        keys = [*dict.fromkeys(["metric", "kind", "contestant", "n_related", across.field, "level", "note"])]
        left = {title: _complete(task, own) for title, own in panels.items()}
        means = {title: over_seeds(own, [key for key in keys if key in own]) for title, own in left.items()}
        crowd = learning.has_backbones(means)  # or of every one of them a run failed: then runs have their lines
        panels = means if crowd else panels
    looks = learning.cast(task, rows[rows["kind"] != "published"])
    data = pd.concat([_drawn(own, looks, across).assign(panel=panel) for panel, own in panels.items()])
    data = data.reset_index(drop=True)
    data["band"] &= not crowd
    measure = metric(str(rows["metric"].iloc[0]))
    axes = curves.Axes(
        across.title,
        f"{measure.label} ({measure.unit} per target)" if measure.unit else measure.label,
        curves.extent(data[across.field]),
        _domain(data, measure),
        field=across.field,
        unit=across.unit,
        log_x=across.log,
        ticks=across.ticks,
    )
    what = f"{title}: {measure.label} of {learning.named(looks)} against {across.title}"
    return learning.paneled(
        data,
        list(panels),
        axes,
        looks,
        name=f"{task.id}-{name}",
        title=title,
        caption=caption + _reading(data, looks),
        alt=what,
    )


def _complete(task: Slice, rows: pd.DataFrame) -> pd.DataFrame:
    """Without what a run of a contestant failed at: a mean over the others would flatter."""
    rows = rows.reset_index(drop=True)
    of_papers = rows["kind"].eq("published")
    # Level lines are of scores without related datasets, wherever they are drawn.
    asked = rows.assign(n_related=rows["n_related"].mask(rows["level"], 0)) if "level" in rows else rows
    return rows[of_papers | rows.index.isin(task.complete_targets(asked[~of_papers]).index)]


def _drawn(rows: pd.DataFrame, looks: Mapping[str, Look], across: Across) -> pd.DataFrame:
    """The rows in drawing order, backbones on top, with what lines and tooltips need."""
    rows = learning.dressed(rows[rows["contestant"].isin(list(looks))], looks, across.field)
    return rows.assign(
        label=rows["label"] + rows["note"].fillna("") if "note" in rows else rows["label"],
        sparse=(rows["kind"] != "published") & ~rows.get("level", pd.Series(False, index=rows.index)),
    )[[*curves.COLUMNS, "band", across.field]]


def _domain(data: pd.DataFrame, measure: Metric) -> tuple[float, float]:
    """The axis follows backbones, oracles and published numbers; a baseline far below them lies on its edge."""
    lead = data[data["kind"] != "baseline"]
    return curves.domain(lead if (lead["kind"] == "backbone").any() else data, measure)


def _reading(data: pd.DataFrame, looks: Mapping[str, Look]) -> str:
    parts = learning.bands_reading(data)
    if (data["kind"] == "published").any():
        parts.append("diamonds: published numbers")
    if BACKGROUND in looks.values():
        parts.append("grey: other baselines")
    return learning.marks_reading(parts)
