"""Figures of error against the number of examples, for one task: lines, looks and axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from iclbench.core.metrics import metric
from iclbench.report.blocks import GROUPS, Figure, Panel
from iclbench.report.data import KINDS, Slice, data_note
from iclbench.report.figures import curves
from iclbench.report.style import BACKGROUND, Look
from iclbench.tables.means import over_seeds
from iclbench.tables.runs import runs_of

FEATURED = 7
# With more backbones than this, lines are means over seeds, fewer baselines are featured, and one drawing of everybody
# becomes one of causal models and one of set models.
CROWD = 6
CROWDED = 3
_CURVE = ["evaluator", "metric", "shift", "kind", "contestant", "n_context"]
_ORDERS: dict[str | None, int] = {order: place for place, order in enumerate(GROUPS)}
EXAMPLES = "examples in context"
# What a line's width is multiplied by where a backbone has several runs.
THIN = 0.65


def figure(
    task: Slice,
    panels: Mapping[str, pd.DataFrame],
    *,
    name: str,
    title: str,
    caption: str,
    of: Mapping[str, Slice] | None = None,
) -> Figure:
    """One panel per title, all with the same axes. The frames are rows of `Slice.curves_by_run` of one metric.

    Every run has its line; runs of one backbone share its colour, and its bands are left to the tooltip, because what
    differs from seed to seed would be hidden below them. Where backbones are a crowd, each has one line, the mean over
    its runs. A dashed rule marks the trained length wherever a panel extends beyond it.

    Args:
        task: whose figure it is.
        panels: the rows of each.
        name: of the figure, behind that of the task.
        title: of the figure.
        caption: what comes before the reading of marks.
        of: the slice of every panel, where panels differ in the trained length.
    """
    rows = pd.concat(panels.values())
    slices = dict.fromkeys(panels, task) if of is None else of
    whole = task if of is None else replace(task, length=None)
    if crowd := is_crowd(rows):
        means = {panel: slices[panel].complete_curves(over_seeds(own, _CURVE)) for panel, own in panels.items()}
        crowd = has_backbones(means)  # or of every one of them a run failed: then runs have their lines
        panels = means if crowd else panels
        panels = _by_order(next(iter(panels.values())), task.looks) if crowd and len(panels) == 1 else panels
    looks = cast(whole, rows)
    data = pd.concat([_drawn(task, own, looks).assign(panel=panel) for panel, own in panels.items()], ignore_index=True)
    data["band"] &= not crowd
    measure = metric(str(rows["metric"].iloc[0]))
    # An error that stays within a decade is read better on a linear axis.
    scale = replace(measure, logarithmic=measure.logarithmic and curves.spans_a_decade(data))
    axes = curves.Axes(
        EXAMPLES,
        measure.label,
        curves.extent(data["n_context"]),
        curves.domain(data, scale),
        log=scale.logarithmic,
        rule=bool(data["trained"].notna().any()),
    )
    what = f"{title}: {measure.label} of {named(looks)} against the number of examples in context"
    return paneled(
        data,
        list(panels),
        axes,
        looks,
        name=f"{task.id}-{name}",
        title=title,
        caption=caption + _reading(axes, looks, data),
        alt=what,
    )


def is_crowd(rows: pd.DataFrame) -> bool:
    return bool(rows.loc[rows["kind"] == "backbone", "contestant"].nunique() > CROWD)


def has_backbones(panels: Mapping[str, pd.DataFrame]) -> bool:
    """Whether a line of a backbone is in any of them."""
    return any(own["kind"].eq("backbone").any() for own in panels.values())


def _by_order(rows: pd.DataFrame, looks: Mapping[str, Look]) -> dict[str, pd.DataFrame]:
    """A panel for the causal models, one for the set models, one for those of which it is not known; everybody else in
    each of them."""
    orders = {name: look.order for name, look in looks.items()}
    titles = rows["contestant"].map(lambda name: GROUPS.get(orders.get(name), "other models"))
    backbones = rows["kind"] == "backbone"
    found = [title for title in (*GROUPS.values(), "other models") if titles[backbones].eq(title).any()]
    return {title: rows[~backbones | titles.eq(title)] for title in found}


def named(looks: Mapping[str, Look]) -> str:
    """Those who are not in the background, as a list in words."""
    return ", ".join(name for name, look in looks.items() if look != BACKGROUND)


def paneled(
    data: pd.DataFrame,
    panels: Sequence[str],
    axes: curves.Axes,
    looks: dict[str, Look],
    *,
    name: str,
    title: str,
    caption: str,
    alt: str,
) -> Figure:
    """The figure of rows that say in the column `panel` where they stand; one panel alone has no title."""
    alone = len(panels) == 1
    titled = [("" if alone else panel, data[data["panel"] == panel]) for panel in panels]
    printed, shown = curves.specifications(titled, axes, looks)
    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{alt}{'' if alone else '; panels: ' + ', '.join(panels)}.",
        data=data,
        printed=printed,
        shown=shown,
        panels=tuple(Panel("" if alone else panel, {"panel": panel}) for panel in panels),
        legend=legend(looks),
        columns=2 if len(panels) == 2 else 0,
    )


def cast(task: Slice, rows: pd.DataFrame) -> dict[str, Look]:
    """The looks of those who are drawn, in legend order: backbones, oracles, featured baselines, the others in grey.

    Featured is the best of each kind of baseline (of `lasso-1e-2` and `lasso-1e-4` the better), up to seven, and
    `zero`; of a crowd of backbones up to three.
    """
    mean = rows[rows["kind"] != "published"].groupby(["kind", "contestant"])["value"].mean().reset_index()
    mean = mean.sort_values("value", ascending=metric(str(rows["metric"].iloc[0])).lower_is_better, kind="stable")
    names = {kind: mean.loc[mean["kind"] == kind, "contestant"].tolist() for kind in KINDS}
    best_of_kind = {task.models[name]: name for name in reversed(names["baseline"])}
    featured = [n for n in names["baseline"] if n in best_of_kind.values() and n != "zero"][
        : CROWDED if is_crowd(rows) else FEATURED
    ]
    featured += [n for n in names["baseline"] if n == "zero"]
    several = rows.groupby("contestant")["run"].nunique().gt(1)
    own = {name: task.looks[name] for name in names["backbone"]}
    looks = {
        name: replace(look, width=round(look.width * THIN, 2) if several[name] else look.width)
        for name, look in sorted(own.items(), key=lambda one: (_ORDERS.get(one[1].order, len(_ORDERS)), one[0]))
    }
    looks |= {name: task.looks[name] for name in [*names["oracle"], *featured]}
    return looks | {n: BACKGROUND for n in names["baseline"] if n not in looks}


def _drawn(task: Slice, rows: pd.DataFrame, looks: dict[str, Look]) -> pd.DataFrame:
    """The rows in drawing order (backbones last, on top) with what tooltips need, and the published points."""
    published = task.published[task.published["contestant"].isin(list(looks))]
    published = published[
        published["metric"].isin(rows["metric"].unique()) & published["shift"].isin(rows["shift"].unique())
    ]
    data = pd.concat([rows, published[published["n_context"].notna()]], ignore_index=True)
    data = dressed(data, looks, "n_context")
    asked = data.groupby("run")["n_context"]
    of_backbone, of_paper = data["kind"] == "backbone", data["kind"] == "published"
    first = data["run"].map(lambda names: runs_of(names)[0])
    trained = first.map(task.results.trained_lengths_by_run).where(of_backbone).astype("Int64")
    return data.assign(
        label=data["label"].where(~of_paper, data["contestant"] + " (published" + data_note(data) + ")"),
        sparse=(asked.transform("nunique") < asked.transform("max") - asked.transform("min") + 1) & ~of_paper,
        trained=trained.where(trained < data["n_context"].max()),
    )[[*curves.COLUMNS, "band", "trained", "n_context"]].reset_index(drop=True)


def dressed(rows: pd.DataFrame, looks: Mapping[str, Look], field: str) -> pd.DataFrame:
    """The rows in drawing order along `field`, backbones last, on top, with their label, series, width of the line and
    whether they have a band: a backbone with several runs goes by their names and has none."""
    order = {name: i for i, name in enumerate(looks)}
    rows = rows.assign(order=rows["contestant"].map(order)).sort_values(
        ["order", "run", field], ascending=[False, True, True], kind="stable"
    )
    alone = rows.groupby(["contestant", "kind"])["run"].transform("nunique") == 1
    of_backbone = rows["kind"] == "backbone"
    return rows.assign(
        label=rows["contestant"].where(~of_backbone | alone, rows["run"]),
        series=rows["run"],
        width=rows["contestant"].map({name: look.width for name, look in looks.items()}).astype(float),
        band=of_backbone & alone,
    )


def bands_reading(data: pd.DataFrame) -> list[str]:
    """The meaning of bands and of lines of one colour, where there are any."""
    of_backbones = data[data["kind"] == "backbone"]
    if of_backbones.empty:
        return []
    bands = ["bands: 95 % intervals over episodes"] if of_backbones["band"].any() else []
    if of_backbones.groupby("contestant")["series"].nunique().le(1).all():
        return bands or ["lines: means over seeds"]
    return bands + ([] if of_backbones["band"].all() else ["lines of one colour: seeds"])


def marks_reading(parts: Sequence[str]) -> str:
    """The meaning of marks as one sentence for the end of a caption."""
    said = "; ".join(parts)
    return f" {said[0].upper()}{said[1:]}." if said else ""


def legend(looks: dict[str, Look]) -> dict[str, Look]:
    named = {name: look for name, look in looks.items() if look != BACKGROUND}
    return named | ({curves.OTHERS: BACKGROUND} if len(named) < len(looks) else {})


def _reading(axes: curves.Axes, looks: dict[str, Look], data: pd.DataFrame) -> str:
    parts = bands_reading(data)
    if axes.rule:
        lengths = " and ".join(str(n) for n in sorted({int(n) for n in data["trained"].dropna()}))
        parts.append(f"dashed rule: the trained length ({lengths} examples)")
    if axes.log:
        parts.append(f"values outside {axes.domain[0]:.2g} to {axes.domain[1]:.2g} are drawn at the edge")
    if (data["kind"] == "published").any():
        parts.append("diamonds: published numbers")
    if BACKGROUND in looks.values():
        parts.append("grey: other baselines")
    return marks_reading(parts)
