"""Figures of scores of the question `targets`: lines over the number of related datasets or of context points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.metrics import Metric, metric
from iclbench.report.style import BACKGROUND, Look


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
    `Slice.target_lines` and the column that `across` names.

    Every run has its line; a backbone with a single run has a band of its 95 % interval.
    """
    rows = pd.concat(panels.values(), ignore_index=True)
    looks = learning.cast(task, rows[rows["kind"] != "published"])
    data = pd.concat([_drawn(own, looks, across).assign(panel=panel) for panel, own in panels.items()])
    data = data.reset_index(drop=True)
    measure = metric(str(rows["metric"].iloc[0]))
    axes = curves.Axes(
        across.title, f"{measure.label} (nats per target)", curves.extent(data[across.field]), _domain(data, measure),
        field=across.field, unit=across.unit, log_x=across.log, ticks=across.ticks,
    )  # fmt: skip
    alone = len(panels) == 1
    split = [("" if alone else panel, data[data["panel"] == panel]) for panel in panels]
    static, live = curves.specifications(split, axes, looks)
    named = [who for who, look in looks.items() if look != BACKGROUND]
    return Figure(
        name=f"{task.id}-{name}",
        title=title,
        caption=caption + _reading(data, looks),
        alt=f"{title}: {measure.label} of {', '.join(named)} against {across.title}"
        f"{'' if alone else '; panels: ' + ', '.join(panels)}.",
        data=data,
        static=static,
        live=live,
        panels=tuple(Panel("" if alone else panel, {"panel": panel}) for panel in panels),
        legend=learning.legend(looks),
    )


def _drawn(rows: pd.DataFrame, looks: Mapping[str, Look], across: Across) -> pd.DataFrame:
    """The rows in drawing order, backbones on top, with what lines and tooltips need."""
    order = {name: i for i, name in enumerate(looks)}
    rows = rows[rows["contestant"].isin(list(looks))]
    rows = rows.assign(order=rows["contestant"].map(order)).sort_values(
        ["order", "run", across.field], ascending=[False, True, True], kind="stable"
    )
    runs = rows.groupby(["contestant", "kind"])["run"].transform("nunique")
    of_backbone, of_paper = rows["kind"] == "backbone", rows["kind"] == "published"
    label = rows["contestant"].where(~of_backbone | (runs == 1), rows["run"])
    if "note" in rows:
        label = label + rows["note"].fillna("")
    return rows.assign(
        label=label,
        series=rows["run"],
        width=rows["contestant"].map({name: look.width for name, look in looks.items()}).astype(float),
        sparse=~of_paper & ~rows.get("level", pd.Series(False, index=rows.index)),
        band=of_backbone & (runs == 1),
    )[[*curves.COLUMNS, "band", across.field]]


def _domain(data: pd.DataFrame, measure: Metric) -> tuple[float, float]:
    """The axis follows backbones, oracles and published numbers; a baseline far below them lies on its edge."""
    lead = data[data["kind"] != "baseline"]
    return curves.domain(lead if (lead["kind"] == "backbone").any() else data, measure)


def _reading(data: pd.DataFrame, looks: Mapping[str, Look]) -> str:
    of_backbones = data[data["kind"] == "backbone"]
    parts = []
    if of_backbones["band"].any():
        parts.append(" Bands: 95 % intervals over episodes.")
    if not of_backbones["band"].all():
        parts.append(" Several lines of one colour: the runs (seeds) of one backbone.")
    if (data["kind"] == "published").any():
        parts.append(" Diamonds: published numbers, of the preset that the tooltip names.")
    if BACKGROUND in looks.values():
        parts.append(" Grey: further baselines, named by the tooltip.")
    return "".join(parts)
