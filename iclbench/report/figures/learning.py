"""Learning curves: the error against the number of examples in context, for one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from iclbench.core.metrics import metric
from iclbench.report.blocks import ORDER_TITLES, Figure, Panel
from iclbench.report.data import KINDS, Slice, data_note
from iclbench.report.figures import curves
from iclbench.report.style import BACKGROUND, Look
from iclbench.tables.means import means_over_seeds
from iclbench.tables.runs import split_run_names

# The largest number of featured baselines, which are not grey, with few and with many backbones.
MAX_FEATURED = 7
MAX_FEATURED_IF_CROWDED = 3
# With more backbones than this, seeds have no lines, fewer baselines are featured, and a single panel is split into one
# for causal models and one for set models.
MAX_UNCROWDED_BACKBONES = 6
_CURVE_KEYS = ["evaluator", "metric", "shift", "kind", "contestant", "n_context"]
_ORDER_RANKS: dict[str | None, int] = {order: place for place, order in enumerate(ORDER_TITLES)}


def figure(
    task: Slice,
    panels: Mapping[str, pd.DataFrame],
    *,
    name: str,
    title: str,
    caption: str,
    slices: Mapping[str, Slice] | None = None,
) -> Figure:
    """A figure with one panel per title, all with the same axes.

    A backbone has a line in its colour. With several runs, the line is the mean, the band is the range over runs, and
    each run has a thin line unless there are many backbones. A dashed rule marks the training length in panels that
    extend beyond it. The legend is in the order of the ends of the lines, from top to bottom.

    Args:
        task: slice of the figure.
        panels: rows of each panel, from `Slice.curves_by_run`, of one metric.
        name: name of the figure, to which the name of the slice is added.
        title: title of the figure.
        caption: caption, to which a description of the marks is added.
        slices: the slice of each panel, if panels have different training lengths.
    """
    rows = pd.concat(panels.values())
    panel_slices = dict.fromkeys(panels, task) if slices is None else slices
    all_lengths = task if slices is None else replace(task, length=None)
    if is_split := has_many_backbones(rows):
        complete_panels = {panel: panel_slices[panel].complete_curves(frame) for panel, frame in panels.items()}
        # If every backbone has a failed run, single runs are drawn, so that the figure is not empty.
        panels = complete_panels if has_backbones(complete_panels) else panels
    panels = {
        panel: with_means(
            frame, panel_slices[panel].complete_curves(means_over_seeds(frame, _CURVE_KEYS)), seeds=not is_split
        )
        for panel, frame in panels.items()
    }
    panels = _panels_by_order(next(iter(panels.values())), task.looks) if is_split and len(panels) == 1 else panels
    looks = looks_in_legend_order(all_lengths, rows)
    frames = [_drawn_rows(task, frame, looks).assign(panel=panel) for panel, frame in panels.items()]
    data = pd.concat(frames, ignore_index=True)
    measure = metric(str(rows["metric"].iloc[0]))
    # For errors within a decade, a linear axis is clearer.
    scale = replace(measure, logarithmic=measure.logarithmic and curves.spans_a_decade(data))
    axes = curves.Axes(
        f"{task.noun} in context",
        measure.label,
        curves.extent(data["n_context"]),
        curves.domain(data, scale),
        log_y=scale.logarithmic,
        has_rule=bool(data["trained"].notna().any()),
        band_name="band",
    )
    looks = sorted_by_line_ends(looks, data, "n_context")
    alt = f"{title}: {measure.label} of {name_list(looks)} against the number of {task.noun} in context"
    return panel_figure(
        data,
        list(panels),
        axes,
        looks,
        name=f"{task.id}-{name}",
        title=title,
        caption=caption + _mark_descriptions(axes, data, task.noun),
        alt=alt,
    )


def has_many_backbones(rows: pd.DataFrame) -> bool:
    return bool(rows.loc[rows["kind"] == "backbone", "contestant"].nunique() > MAX_UNCROWDED_BACKBONES)


def has_backbones(panels: Mapping[str, pd.DataFrame]) -> bool:
    """Whether any panel has a backbone."""
    return any(rows["kind"].eq("backbone").any() for rows in panels.values())


def with_means(rows: pd.DataFrame, means: pd.DataFrame, *, seeds: bool) -> pd.DataFrame:
    """The rows of single runs and, for each backbone with several runs, its means with the range over the runs.

    Args:
        rows: rows of single runs.
        means: the means of `tables.means.means_over_seeds`, only where no run failed.
        seeds: whether to include the runs of backbones that have a mean. Other runs are always included.

    Returns:
        The rows with the boolean columns `is_mean` and `is_seed` (a run of a backbone that has a mean).
    """
    is_backbone = rows["kind"].eq("backbone")
    runs = rows[is_backbone].groupby("contestant")["run"].nunique()
    means = means[means["kind"].eq("backbone") & means["contestant"].isin(runs.index[runs > 1])]
    means = means.assign(low=means["lowest"], high=means["highest"], is_mean=True, is_seed=False)
    rows = rows.assign(is_mean=False, is_seed=is_backbone & rows["contestant"].isin(means["contestant"]))
    return pd.concat([rows if seeds else rows[~rows["is_seed"]], means], ignore_index=True)


def sorted_by_line_ends(looks: Mapping[str, Look], data: pd.DataFrame, field: str) -> dict[str, Look]:
    """The looks in the order of the right ends of their lines (averaged over panels), from top to bottom, and then the
    looks without a line."""
    lines = data[data["kind"].ne("published") & data["value"].notna()]
    last = lines.sort_values(field, kind="stable").groupby(["contestant", "panel", "series"]).tail(1)
    ends = last.astype({"value": float}).groupby("contestant")["value"].mean().sort_values(ascending=False)
    names = dict.fromkeys([*ends.index, *looks])
    return {str(name): looks[name] for name in names if name in looks}


def _panels_by_order(rows: pd.DataFrame, looks: Mapping[str, Look]) -> dict[str, pd.DataFrame]:
    """Panels for causal models, for set models and for models of unknown order, each with all baselines."""
    orders = {name: look.order for name, look in looks.items()}
    titles = rows["contestant"].map(lambda name: ORDER_TITLES.get(orders.get(name), "other models"))
    is_backbone = rows["kind"] == "backbone"
    panels = [title for title in (*ORDER_TITLES.values(), "other models") if titles[is_backbone].eq(title).any()]
    return {title: rows[~is_backbone | titles.eq(title)] for title in panels}


def means_and_points(means: pd.DataFrame, points: pd.DataFrame, looks: Mapping[str, Look]) -> pd.DataFrame:
    """The rows of a figure with a line per backbone through its means, and a point per run.

    Args:
        means: means over seeds, with the column `contestant`.
        points: values of runs, with the columns `contestant`, `run` and `series`. Points of one series are connected.
        looks: the looks of the backbones.
    """
    means = means.assign(run=means["contestant"], series=means["contestant"], sparse=False)
    data = pd.concat([means, points.assign(sparse=True)], ignore_index=True)
    widths = [looks[name].width for name in data["contestant"]]
    return data.assign(kind="backbone", low=float("nan"), high=float("nan"), width=widths)


def name_list(looks: Mapping[str, Look]) -> str:
    """The names of contestants that are not in the background, as text."""
    return ", ".join(name for name, look in looks.items() if look != BACKGROUND)


def panel_figure(
    data: pd.DataFrame,
    panels: Sequence[str],
    axes: curves.Axes,
    looks: dict[str, Look],
    *,
    name: str,
    title: str,
    caption: str,
    alt: str,
    columns: int = 0,
) -> Figure:
    """A figure of lines with a panel for each value of the column `panel`; a single panel has no title.

    `columns` is the number of panels in a row (default: 2 for two panels, otherwise as many as fit on the page).
    """
    is_single = len(panels) == 1
    titled_rows = [("" if is_single else panel, data[data["panel"] == panel]) for panel in panels]
    make_static, make_live = curves.specifications(titled_rows, axes, looks, columns or curves.PANELS_PER_ROW)
    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{alt}{'' if is_single else '; panels: ' + ', '.join(panels)}.",
        data=data,
        make_static=make_static,
        make_live=make_live,
        panels=tuple(Panel("" if is_single else panel, {"panel": panel}) for panel in panels),
        legend=legend(looks),
        columns=2 if len(panels) == 2 else columns,
    )


def looks_in_legend_order(task: Slice, rows: pd.DataFrame) -> dict[str, Look]:
    """The looks of all contestants in legend order: backbones, oracles, featured baselines, and others in grey.

    Featured baselines are `zero` and the best baseline of each model (such as the better of `lasso-1e-2` and
    `lasso-1e-4`), at most seven or, with many backbones, three.
    """
    mean = rows[rows["kind"] != "published"].groupby(["kind", "contestant"])["value"].mean().reset_index()
    mean = mean.sort_values("value", ascending=metric(str(rows["metric"].iloc[0])).lower_is_better, kind="stable")
    names = {kind: mean.loc[mean["kind"] == kind, "contestant"].tolist() for kind in KINDS}
    best_of_model = {task.models[name]: name for name in reversed(names["baseline"])}
    featured_baselines = [name for name in names["baseline"] if name in best_of_model.values() and name != "zero"]
    featured_baselines = featured_baselines[: MAX_FEATURED_IF_CROWDED if has_many_backbones(rows) else MAX_FEATURED]
    featured_baselines += [name for name in names["baseline"] if name == "zero"]
    backbones = [(task.looks[name], name) for name in names["backbone"]]
    backbones.sort(key=lambda pair: (_ORDER_RANKS.get(pair[0].order, len(_ORDER_RANKS)), pair[1]))
    looks = {name: look for look, name in backbones}
    looks |= {name: task.looks[name] for name in [*names["oracle"], *featured_baselines]}
    return looks | {name: BACKGROUND for name in names["baseline"] if name not in looks}


def _drawn_rows(task: Slice, rows: pd.DataFrame, looks: dict[str, Look]) -> pd.DataFrame:
    """The rows in drawing order (backbones last, on top) with the columns of tooltips, and the published points."""
    published = task.published_rows[task.published_rows["contestant"].isin(list(looks))]
    published = published[
        published["metric"].isin(rows["metric"].unique()) & published["shift"].isin(rows["shift"].unique())
    ]
    data = pd.concat([rows, published[published["n_context"].notna()]], ignore_index=True)
    data = with_look_columns(data, looks, "n_context")
    sizes = data.groupby("run")["n_context"]
    is_backbone, is_published = data["kind"] == "backbone", data["kind"] == "published"
    first_runs = data["run"].map(lambda names: split_run_names(names)[0])
    lengths = first_runs.map(task.results.trained_lengths_by_run).where(is_backbone).astype("Int64")
    return data.assign(
        label=data["label"].where(~is_published, data["contestant"] + " (published" + data_note(data) + ")"),
        sparse=(sizes.transform("nunique") < sizes.transform("max") - sizes.transform("min") + 1) & ~is_published,
        trained=lengths.where(lengths < data["n_context"].max()),
    )[[*curves.COLUMNS, "band", "trained", "n_context"]].reset_index(drop=True)


def with_look_columns(rows: pd.DataFrame, looks: Mapping[str, Look], field: str) -> pd.DataFrame:
    """The rows in drawing order along `field` (backbones last, on top), with the columns label, series, width and band.

    Runs of a backbone with a mean (column `is_seed` of `with_means`) are thin lines without bands, labelled with their
    names. Runs of a backbone without a mean have no bands either.
    """
    order = {name: i for i, name in enumerate(looks)}
    rows = rows.assign(order=rows["contestant"].map(order)).sort_values(
        ["order", "run", field], ascending=[False, True, True], kind="stable"
    )
    is_backbone = rows["kind"] == "backbone"
    is_mean, is_seed = (
        rows[name].eq(True).fillna(False).astype(bool) if name in rows else pd.Series(False, rows.index)
        for name in ("is_mean", "is_seed")
    )
    has_one_run = rows.groupby(["contestant", "kind"])["run"].transform("nunique").eq(1) | is_mean
    widths = rows["contestant"].map({name: look.width for name, look in looks.items()}).astype(float)
    return rows.assign(
        label=rows["contestant"].where(~is_backbone | has_one_run, rows["run"]),
        series=rows["run"],
        width=widths.mask(is_seed, curves.SEED_WIDTH),
        band=is_backbone & has_one_run,
    )


def band_descriptions(data: pd.DataFrame) -> list[str]:
    """Descriptions of lines and bands, for captions."""
    backbone_rows = data[data["kind"] == "backbone"]
    if backbone_rows.empty:
        return []
    is_mean = backbone_rows["series"].map(lambda runs: len(split_run_names(runs)) > 1).astype(bool)
    parts = ["bands: range over seeds"] if is_mean.any() else []
    if (backbone_rows["band"] & ~is_mean).any():
        parts += [f"bands{' of single seeds' * bool(parts)}: 95 % intervals over episodes"]
    is_thin = backbone_rows["width"].eq(curves.SEED_WIDTH)
    parts += ["thin lines: seeds"] * bool(is_thin.any())
    has_no_mean = ~backbone_rows["band"] & ~is_thin
    return parts + ["lines of one colour without a band: seeds of a model with a failed seed"] * bool(has_no_mean.any())


def caption_sentence(parts: Sequence[str]) -> str:
    """Descriptions of marks as one sentence for the end of a caption."""
    text = "; ".join(parts)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def legend(looks: dict[str, Look]) -> dict[str, Look]:
    """The entries of the page's legend. All contestants in the background share one entry."""
    entries = {name: look for name, look in looks.items() if look != BACKGROUND}
    return entries | ({curves.OTHERS: BACKGROUND} if len(entries) < len(looks) else {})


def _mark_descriptions(axes: curves.Axes, data: pd.DataFrame, noun: str) -> str:
    parts = band_descriptions(data)
    if axes.has_rule:
        lengths = " and ".join(str(n) for n in sorted({int(n) for n in data["trained"].dropna()}))
        parts.append(f"dashed rule: the training length ({lengths} {noun})")
    if axes.log_y:
        parts.append(f"values outside {axes.domain[0]:.2g} to {axes.domain[1]:.2g} are drawn at the edge")
    if (data["kind"] == "published").any():
        parts.append("diamonds: published numbers")
    return caption_sentence(parts)
