"""Figures of error against the number of examples, for one task: who is drawn, in which look, with which axes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from iclbench.report.blocks import Figure, Panel
from iclbench.report.data import KINDS, Slice
from iclbench.report.figures import curves
from iclbench.report.metrics import metric
from iclbench.report.style import BACKGROUND, Look

FEATURED = 7
EXAMPLES = "examples in context"


def figure(
    task: Slice, rows: pd.DataFrame, panels: Sequence[str], *, name: str, title: str, caption: str, rule: bool = True
) -> Figure:
    """One panel per shift in `panels`, all with the same axes. `rows` are rows of `task.curves` of one metric."""
    measure = metric(str(rows["metric"].iloc[0]))
    looks = cast(task, rows)
    data = _drawn(task, rows, looks)
    axes = curves.Axes(
        EXAMPLES, measure.label, curves.extent(data["n_context"]), curves.domain(data, measure), log=measure.log,
        rule=task.trained_length if rule else None,
    )  # fmt: skip
    alone = len(panels) == 1
    titled = [("" if alone else shift, data[data["shift"] == shift]) for shift in panels]
    static, live = curves.specifications(titled, axes, looks)
    return Figure(
        name=f"{task.id}-{name}",
        title=title,
        caption=caption + _reading(axes, looks, data),
        alt=f"{title}: {measure.label} of {', '.join(n for n, k in looks.items() if k != BACKGROUND)} "
        f"against the number of examples in context{'' if alone else '; panels: ' + ', '.join(panels)}.",
        data=data,
        static=static,
        live=live,
        panels=tuple(Panel("" if alone else s, {"shift": s}) for s in panels),
        legend=_legend(looks),
    )


def cast(task: Slice, rows: pd.DataFrame) -> dict[str, Look]:
    """The looks of those who are drawn, in legend order: backbones, oracles, featured baselines, the others in grey.

    Featured is the best of each kind of baseline (of `lasso-1e-2` and `lasso-1e-4` the better), up to seven, and
    `zero`.
    """
    mean = rows[rows["kind"] != "published"].groupby(["kind", "contestant"])["value"].mean().reset_index()
    mean = mean.sort_values("value", ascending=metric(str(rows["metric"].iloc[0])).lower_is_better, kind="stable")
    names = {kind: mean.loc[mean["kind"] == kind, "contestant"].tolist() for kind in KINDS}
    best_of_stem = {re.sub(r"-\d.*$", "", name): name for name in reversed(names["baseline"])}
    featured = [n for n in names["baseline"] if n in best_of_stem.values() and n != "zero"][:FEATURED]
    featured += [n for n in names["baseline"] if n == "zero"]
    looks = {n: task.looks[n] for n in [*sorted(names["backbone"]), *names["oracle"], *featured]}
    return looks | {n: BACKGROUND for n in names["baseline"] if n not in looks}


def _drawn(task: Slice, rows: pd.DataFrame, looks: dict[str, Look]) -> pd.DataFrame:
    """The rows in drawing order (backbones last, on top) with what tooltips need, and the published points."""
    published = task.rows[(task.rows["kind"] == "published") & task.rows["contestant"].isin(list(looks))]
    published = published[
        published["metric"].isin(rows["metric"].unique()) & published["shift"].isin(rows["shift"].unique())
    ]
    data = pd.concat([rows, published[published["n_context"].notna()].assign(runs=1)], ignore_index=True)
    order = {name: i for i, name in enumerate(looks)}
    data = data.assign(order=data["contestant"].map(order)).sort_values(
        ["order", "shift", "n_context"], ascending=[False, True, True], kind="stable"
    )
    points = data.groupby(["shift", "contestant"])["n_context"].transform("nunique")
    span = data.groupby(["shift", "contestant"])["n_context"].transform(lambda n: n.max() - n.min() + 1)
    published_row = data["kind"] == "published"
    seeds = data["runs"].map(lambda k: f" ({k} seeds)" if k > 1 else "")
    return data.assign(
        label=data["contestant"] + seeds.where(~published_row, " (published)"),
        series=data["contestant"],
        width=data["contestant"].map({name: look.width for name, look in looks.items()}).astype(float),
        sparse=(points < span) & ~published_row,
    )[[*curves.COLUMNS, "shift", "n_context"]].reset_index(drop=True)


def _legend(looks: dict[str, Look]) -> dict[str, Look]:
    named = {name: look for name, look in looks.items() if look != BACKGROUND}
    return named | ({curves.OTHERS: BACKGROUND} if len(named) < len(looks) else {})


def _reading(axes: curves.Axes, looks: dict[str, Look], data: pd.DataFrame) -> str:
    parts = [" Bands: 95 % intervals over episodes."]
    if axes.rule is not None:
        parts.append(f" Dashed rule: {axes.rule} examples, the trained length.")
    if axes.log:
        parts.append(
            f" Logarithmic axis; values below {axes.domain[0]:.2g} or above {axes.domain[1]:.2g} lie on its edge."
        )
    if (data["kind"] == "published").any():
        parts.append(" Diamonds: published numbers.")
    if BACKGROUND in looks.values():
        parts.append(" Grey: further baselines, named by the tooltip.")
    return "".join(parts)
