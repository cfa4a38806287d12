"""Figures of the results of language models.

- Accuracy by family and model, as in figure 6 of the Mamba ICL paper.
- Accuracy against the number of demonstrations, as in figure 7 of the Mamba ICL paper and figure 4 of the Deep-Thinking
  paper.
- Gains of methods over plain in-context learning.
- Accuracy with single sets of demonstrations, as in figure 5 of the Deep-Thinking paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd

from iclbench.report.blocks import Figure
from iclbench.report.figures import curves, dots, learning
from iclbench.report.language import ACCURACY, MAJORITY, LanguageResults, mean_over_tasks
from iclbench.report.style import Look
from iclbench.tables.means import means_over_seeds

# Largest number of panels with one task each. If there are more tasks, they are averaged by family.
MAX_PANELS = 12
ACCURACY_DOMAIN = (0.0, 1.02)
# Suffix of the names of contestants on the development split.
DEVELOPMENT = " (development)"


def families(language: LanguageResults) -> Figure | None:
    """A figure of the mean accuracy over the tasks of every family, one point per contestant."""
    rows = language.at_main_shots(unshifted_scores(language))
    frames = []
    for family, tasks in language.families.items():
        scored_tasks = [task for task in tasks if task in set(rows["task"])]
        mean = mean_over_tasks(rows, scored_tasks, ["contestant"]).assign(part="mean", panel=family)
        frames += [mean, _level(language, scored_tasks).assign(panel=family)] if len(mean) else []
    if not frames:
        return None
    data = pd.concat([frame for frame in frames if len(frame)], ignore_index=True).assign(note="")
    panels = list(dict.fromkeys(data["panel"]))
    data = data.assign(row=data["contestant"]).reindex(columns=dots.COLUMNS)
    names = [name for name in language.contestants if name in set(data["contestant"])]
    return dots.figure(
        "language-families",
        "Mean accuracy by family and model",
        "Mean accuracy over the tasks of each family, with 95 % intervals. Dotted line: accuracy of the most "
        "frequent answer.",
        data,
        panels,
        names,
        looks_of(language, data),
        dots.Scale("mean accuracy", ACCURACY_DOMAIN),
    )


def shots(language: LanguageResults) -> Figure | None:
    """A figure of accuracy against the number of demonstrations, one panel per task or, for many tasks, per family."""
    rows = unshifted_scores(language)
    rows = rows[rows.groupby(["task", "contestant"])["n_context"].transform("nunique") > 1]
    counts = rows.loc[rows["n_context"] > 0].groupby("task")["n_context"].nunique()
    rows = rows[rows["task"].isin(counts.index[counts > 1])]
    if rows.empty:
        return None
    data, panels, panel_meaning = split_into_panels(rows, "n_context")
    data["n_context"] = data["n_context"].astype(float)
    sizes = sorted(data["n_context"].unique())
    axes = curves.Axes(
        "demonstrations",
        "accuracy",
        curves.extent(data["n_context"]),
        ACCURACY_DOMAIN,
        x_name="demonstrations",
        band_name="95 % interval",
        ticks=tuple(sizes) if len(sizes) <= 8 else (),
    )
    return line_figure(
        language,
        data,
        panels,
        axes,
        name="language-shots",
        title="Accuracy against demonstrations",
        caption=f"Accuracy against the number of demonstrations, {panel_meaning}. Bands: 95 % intervals over sets of "
        "demonstrations (one set: over queries).",
    )


def gains(language: LanguageResults) -> Figure | None:
    """A figure of the paired gain of every method on every task, one panel per contestant."""
    rows = language.at_main_shots(language.gains)
    rows = rows[rows["shift"] == "none"]
    if rows.empty:
        return None
    if rows["task"].nunique() > 2 * MAX_PANELS:
        means = [
            mean_over_tasks(rows, sorted(family_rows["task"].unique()), ["contestant"]).assign(task=family)
            for family, family_rows in rows.groupby("family")
        ]
        rows, row_meaning = pd.concat(means, ignore_index=True), "mean over the tasks of a family"
    else:
        row_meaning = "on every task"
    panels = sorted(rows["contestant"].unique())
    data = rows.assign(part="mean", panel=rows["contestant"], row=rows["task"], note=rows["task"])
    largest = float(np.nanmax(np.abs(rows[["value", "low", "high"]].to_numpy(float))))
    limit = 1.05 * max(largest, 0.02)
    return dots.figure(
        "language-gains",
        "Gain over plain in-context learning",
        f"Accuracy with each method minus that of plain in-context learning on the same queries, {row_meaning}, with "
        "paired 95 % intervals.",
        data.reindex(columns=dots.COLUMNS),
        panels,
        list(dict.fromkeys(rows["task"])),
        looks_of(language, data),
        dots.Scale("gain in accuracy", (-limit, limit), zero_rule=True),
    )


def spread(language: LanguageResults, axis: Literal["demo_seed", "order"]) -> Figure | None:
    """A figure of the accuracy with each set of demonstrations (`demo_seed`) or each order of one set (`order`), and
    the mean."""
    rows = language.at_main_shots(
        language.cells[(language.cells["metric"] == ACCURACY) & (language.cells["shift"] == "none")]
    )
    rows = rows[rows["kind"] == "backbone"]
    other_axis = "order" if axis == "demo_seed" else "demo_seed"
    rows = rows[rows[other_axis] == rows.groupby("task")[other_axis].transform("min")]
    rows = rows[rows.groupby(["task", "contestant"])[axis].transform("nunique") > 1]
    if rows.empty:
        return None
    tasks = _most_variable(rows)
    rows = rows[rows["task"].isin(tasks)]
    noun = "demonstrations" if axis == "demo_seed" else "order"
    draws = rows.assign(part="draw", low=np.nan, high=np.nan, note=f"{noun} " + rows[axis].astype(str))
    keys = ["task", "contestant", "metric"]
    means = means_over_seeds(rows, keys, axis).assign(part="mean", note="mean")
    levels = [_level(language, [task]).assign(task=task, note="") for task in tasks]
    data = pd.concat([draws, means, *levels], ignore_index=True)
    data = data.assign(panel=data["task"], row=data["contestant"]).reindex(columns=dots.COLUMNS)
    names = [name for name in language.contestants if name in set(data["contestant"])]
    draw_name = "sets of demonstrations" if axis == "demo_seed" else "orders of the same demonstrations"
    selection = f" Shown: the {MAX_PANELS} tasks with the largest spread." if len(tasks) == MAX_PANELS else ""
    return dots.figure(
        f"language-{'seeds' if axis == 'demo_seed' else 'orders'}",
        f"Accuracy over {draw_name}",
        f"Accuracy with each of the {draw_name} (small points), and the mean with its 95 % interval (large points). "
        f"Dotted line: accuracy of the most frequent answer.{selection}",
        data,
        tasks,
        names,
        looks_of(language, data),
        dots.Scale("accuracy", accuracy_range(data)),
    )


def unshifted_scores(language: LanguageResults) -> pd.DataFrame:
    """The mean accuracies over sets of demonstrations, for all models and methods on tasks without a shift."""
    rows = language.scores
    return rows[(rows["metric"] == ACCURACY) & (rows["shift"] == "none") & (rows["kind"] == "backbone")]


def split_into_panels(rows: pd.DataFrame, field: str) -> tuple[pd.DataFrame, dict[str, list[str]], str]:
    """The rows with the column `panel`, the tasks of each panel, and the meaning of a panel for the caption.

    A panel is a task or, if there are more than `MAX_PANELS` tasks, the mean over a family, for contestants with scores
    on all of its tasks.
    """
    tasks = sorted(rows["task"].unique(), key=lambda task: (rows.loc[rows["task"] == task, "family"].iloc[0], task))
    if len(tasks) <= MAX_PANELS:
        return rows.assign(panel=rows["task"]), {task: [task] for task in tasks}, "a panel per task"
    members = {str(family): sorted(group["task"].unique()) for family, group in rows.groupby("family")}
    keys = ["contestant", field]
    means = [mean_over_tasks(rows, tasks, keys).assign(panel=family) for family, tasks in members.items()]
    data = pd.concat(means, ignore_index=True)
    panels = {family: members[family] for family in dict.fromkeys(data["panel"])}
    return data, panels, "a panel per family (mean over its tasks)"


def line_figure(
    language: LanguageResults,
    data: pd.DataFrame,
    panels: Mapping[str, Sequence[str]],
    axes: curves.Axes,
    *,
    name: str,
    title: str,
    caption: str,
    levels: bool = True,
) -> Figure:
    """A figure of lines; `levels` adds the accuracy of the most frequent answer on the tasks of each panel."""
    field, frames = axes.field, [data]
    for panel, tasks in panels.items() if levels else ():
        level = _level(language, tasks).assign(panel=panel)
        frames += [level.assign(**{field: end}) for end in axes.range]
    data = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    looks = looks_of(language, data)
    data = data.assign(
        kind=np.where(data["contestant"] == MAJORITY, "baseline", "backbone"),
        label=data["contestant"],
        series=data["contestant"],
        sparse=data["contestant"] != MAJORITY,
        width=[looks[name].width for name in data["contestant"]],
        run=data["contestant"].str.removesuffix(DEVELOPMENT),  # a run has the name of its contestant
    ).sort_values(["contestant", field], ascending=[False, True])
    level_meaning = " Horizontal line: accuracy of the most frequent answer." if MAJORITY in looks else ""
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", field, "panel"]].reset_index(drop=True),
        list(panels),
        axes,
        looks,
        name=name,
        title=title,
        caption=caption + level_meaning,
        alt=f"{title}: {', '.join(looks)}",
    )


def looks_of(language: LanguageResults, data: pd.DataFrame) -> dict[str, Look]:
    """The looks of contestants in the data, models first and the majority last. The development split is dotted."""
    names = [name for model in language.contestants for name in (model, model + DEVELOPMENT)]
    development_looks = {name + DEVELOPMENT: replace(look, dash=(1, 3)) for name, look in language.looks.items()}
    looks = language.looks | development_looks
    return {name: looks[name] for name in [*names, MAJORITY] if name in set(data["contestant"])}


def _level(language: LanguageResults, tasks: Sequence[str]) -> pd.DataFrame:
    """The accuracy of the most frequent answer, averaged over tasks; an empty frame if it is unknown for one of the
    tasks."""
    rows = language.majority[(language.majority["metric"] == ACCURACY) & language.majority["task"].isin(tasks)]
    if rows["task"].nunique() < len(tasks):
        return pd.DataFrame(columns=["part", "contestant", "value", "low", "high"])
    level = {"part": "level", "contestant": MAJORITY, "value": rows["value"].mean(), "low": np.nan, "high": np.nan}
    return pd.DataFrame([level])


def _most_variable(rows: pd.DataFrame) -> list[str]:
    """The tasks with the largest spread over single draws, at most `MAX_PANELS`, sorted by family and name."""
    spreads = rows.groupby(["task", "contestant"])["value"].std().groupby("task").max()
    selected_tasks = set(spreads.sort_values(ascending=False, kind="stable").index[:MAX_PANELS])
    order = rows[["family", "task"]].drop_duplicates().sort_values(["family", "task"])
    return [task for task in order["task"] if task in selected_tasks]


def accuracy_range(rows: pd.DataFrame) -> tuple[float, float]:
    """A range slightly wider than the range of the values and intervals, so that small differences are visible."""
    ends = rows[["value", "low", "high"]].astype(float)
    return max(0.0, float(ends.min().min()) - 0.02), min(1.02, float(ends.max().max()) + 0.02)
