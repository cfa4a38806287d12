"""Figures on language models: families by model (Mamba ICL, figure 6), accuracy against the number of demonstrations
(its figure 7; Deep-Thinking, figure 4), gains of methods, and single draws of demonstrations (its figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd

from iclbench.report.blocks import Figure
from iclbench.report.figures import curves, dots, learning
from iclbench.report.language import HEADLINE, MAJORITY, Language, mean_over_tasks
from iclbench.report.style import Look
from iclbench.tables.means import over_seeds

# Panels of a figure that has one per task; more tasks are averaged by family.
AT_MOST = 12
ACCURACY = (0.0, 1.02)
# The end of the names of contestants on the development split.
DEVELOPMENT = " (development)"


def families(found: Language) -> Figure | None:
    """Mean accuracy over the tasks of every family, a dot per contestant."""
    rows = found.at_main(plain_rows(found))
    keys = ["contestant"]
    parts = []
    for family, tasks in found.families.items():
        asked = [task for task in tasks if task in set(rows["task"])]
        mean = mean_over_tasks(rows, asked, keys).assign(part="mean", panel=family)
        parts += [mean, _level(found, asked).assign(panel=family)] if len(mean) else []
    if not parts:
        return None
    data = pd.concat([part for part in parts if len(part)], ignore_index=True).assign(note="")
    panels = list(dict.fromkeys(data["panel"]))
    data = data.assign(row=data["contestant"]).reindex(columns=dots.COLUMNS)
    names = [name for name in found.contestants if name in set(data["contestant"])]
    return dots.figure(
        "language-families",
        "Mean accuracy by family and model",
        "Mean accuracy over the tasks of each family, with 95 % intervals. Dotted: always the most frequent answer.",
        data,
        panels,
        names,
        looks_of(found, data),
        dots.Scale("mean accuracy", ACCURACY),
    )


def shots(found: Language) -> Figure | None:
    """Accuracy against the number of demonstrations, a panel per task, or per family where there are many tasks."""
    rows = plain_rows(found)
    rows = rows[rows.groupby(["task", "contestant"])["n_context"].transform("nunique") > 1]
    several = rows.loc[rows["n_context"] > 0].groupby("task")["n_context"].nunique()
    rows = rows[rows["task"].isin(several.index[several > 1])]
    if rows.empty:
        return None
    data, panels, what = paneled(rows, "n_context")
    data["n_context"] = data["n_context"].astype(float)
    sizes = sorted(data["n_context"].unique())
    axes = curves.Axes(
        "demonstrations",
        "accuracy",
        curves.extent(data["n_context"]),
        ACCURACY,
        unit="demonstrations",
        band="95 % interval",
        ticks=tuple(sizes) if len(sizes) <= 8 else (),
    )
    return lines(
        found,
        data,
        panels,
        axes,
        name="language-shots",
        title="Accuracy against demonstrations",
        caption=f"Accuracy against the number of demonstrations, {what}. Bands: 95 % intervals over sets of "
        "demonstrations (one set: over queries).",
    )


def gains(found: Language) -> Figure | None:
    """The paired gain of every method on every task, a panel per contestant."""
    rows = found.at_main(found.gains)
    rows = rows[rows["shift"] == "none"]
    if rows.empty:
        return None
    if rows["task"].nunique() > 2 * AT_MOST:
        parts = [
            mean_over_tasks(rows, sorted(own["task"].unique()), ["contestant"]).assign(task=family)
            for family, own in rows.groupby("family")
        ]
        rows, what = pd.concat(parts, ignore_index=True), "mean over the tasks of a family"
    else:
        what = "on every task"
    panels = sorted(rows["contestant"].unique())
    data = rows.assign(part="mean", panel=rows["contestant"], row=rows["task"], note=rows["task"])
    furthest = float(np.nanmax(np.abs(rows[["value", "low", "high"]].to_numpy(float))))
    reach = 1.05 * max(furthest, 0.02)
    return dots.figure(
        "language-gains",
        "Gain over plain in-context learning",
        f"Accuracy with each method minus that of plain in-context learning on the same queries, {what}, with paired "
        "95 % intervals.",
        data.reindex(columns=dots.COLUMNS),
        panels,
        list(dict.fromkeys(rows["task"])),
        looks_of(found, data),
        dots.Scale("gain in accuracy", (-reach, reach), zero_rule=True),
    )


def spread(found: Language, axis: Literal["demo_seed", "order"]) -> Figure | None:
    """Single sets of demonstrations (`demo_seed`), or orders of one (`order`): a small dot each, and their mean."""
    rows = found.at_main(found.cells[(found.cells["metric"] == HEADLINE) & (found.cells["shift"] == "none")])
    rows = rows[rows["kind"] == "backbone"]
    other = "order" if axis == "demo_seed" else "demo_seed"
    rows = rows[rows[other] == rows.groupby("task")[other].transform("min")]
    rows = rows[rows.groupby(["task", "contestant"])[axis].transform("nunique") > 1]
    if rows.empty:
        return None
    tasks = _widest(rows)
    rows = rows[rows["task"].isin(tasks)]
    word = "demonstrations" if axis == "demo_seed" else "order"
    draws = rows.assign(part="draw", low=np.nan, high=np.nan, note=f"{word} " + rows[axis].astype(str))
    keys = ["task", "contestant", "metric"]
    means = over_seeds(rows, keys, axis).assign(part="mean", note="mean")
    levels = [_level(found, [task]).assign(task=task, note="") for task in tasks]
    data = pd.concat([draws, means, *levels], ignore_index=True)
    data = data.assign(panel=data["task"], row=data["contestant"]).reindex(columns=dots.COLUMNS)
    names = [name for name in found.contestants if name in set(data["contestant"])]
    what = "sets of demonstrations" if axis == "demo_seed" else "orders of the same demonstrations"
    few = f" Shown: the {AT_MOST} tasks with the largest spread." if len(tasks) == AT_MOST else ""
    return dots.figure(
        f"language-{'seeds' if axis == 'demo_seed' else 'orders'}",
        f"Accuracy over {what}",
        f"Accuracy after each of the {what} (small dots), and the mean with its 95 % interval (discs). Dotted: always "
        f"the most frequent answer.{few}",
        data,
        tasks,
        names,
        looks_of(found, data),
        dots.Scale("accuracy", around(data)),
    )


def plain_rows(found: Language) -> pd.DataFrame:
    """Means over sets of demonstrations of all models and methods, as the task is."""
    rows = found.scores
    return rows[(rows["metric"] == HEADLINE) & (rows["shift"] == "none") & (rows["kind"] == "backbone")]


def paneled(rows: pd.DataFrame, field: str) -> tuple[pd.DataFrame, dict[str, list[str]], str]:
    """The rows with the column `panel`, the titles of the panels with their tasks, and the meaning of a panel: a
    task or, if there are too many, the mean of a family (of contestants with all of its tasks)."""
    tasks = sorted(rows["task"].unique(), key=lambda task: (rows.loc[rows["task"] == task, "family"].iloc[0], task))
    if len(tasks) <= AT_MOST:
        return rows.assign(panel=rows["task"]), {task: [task] for task in tasks}, "a panel per task"
    members = {str(family): sorted(own["task"].unique()) for family, own in rows.groupby("family")}
    means = [mean_over_tasks(rows, own, ["contestant", field]).assign(panel=name) for name, own in members.items()]
    data = pd.concat(means, ignore_index=True)
    panels = {name: members[name] for name in dict.fromkeys(data["panel"])}
    return data, panels, "a panel per family (mean over its tasks)"


def lines(
    found: Language,
    data: pd.DataFrame,
    panels: Mapping[str, Sequence[str]],
    axes: curves.Axes,
    *,
    name: str,
    title: str,
    caption: str,
    levels: bool = True,
) -> Figure:
    """The figure of rows by their column `panel`, with the majority on the tasks of each panel as level lines."""
    field, parts = axes.field, [data]
    for panel, tasks in panels.items() if levels else ():
        level = _level(found, tasks).assign(panel=panel)
        parts += [level.assign(**{field: end}) for end in axes.range]
    data = pd.concat([part for part in parts if len(part)], ignore_index=True)
    drawn = looks_of(found, data)
    data = data.assign(
        kind=np.where(data["contestant"] == MAJORITY, "baseline", "backbone"),
        label=data["contestant"],
        series=data["contestant"],
        sparse=data["contestant"] != MAJORITY,
        width=[drawn[name].width for name in data["contestant"]],
        run=data["contestant"].str.removesuffix(DEVELOPMENT),  # a run is called as its contestant
    ).sort_values(["contestant", field], ascending=[False, True])
    named = " Level line: always the most frequent answer." if MAJORITY in drawn else ""
    return learning.paneled(
        data[[*curves.COLUMNS, "run", field, "panel"]].reset_index(drop=True),
        list(panels),
        axes,
        drawn,
        name=name,
        title=title,
        caption=caption + named,
        alt=f"{title}: {', '.join(drawn)}",
    )


def looks_of(found: Language, data: pd.DataFrame) -> dict[str, Look]:
    """Looks of those in the data, models first, the majority last; on the development split dotted."""
    drawn = set(data["contestant"])
    every = [split for name in found.contestants for split in (name, name + DEVELOPMENT)]
    dotted = {name: replace(look, dash=(1, 3)) for name, look in found.looks.items()}
    both = found.looks | {name + DEVELOPMENT: look for name, look in dotted.items()}
    return {name: both[name] for name in [*every, MAJORITY] if name in drawn}


def _level(found: Language, tasks: Sequence[str]) -> pd.DataFrame:
    """What the most frequent answer gets, averaged over tasks; no row unless it is known of all of them."""
    own = found.majority[(found.majority["metric"] == HEADLINE) & found.majority["task"].isin(tasks)]
    if own["task"].nunique() < len(tasks):
        return pd.DataFrame(columns=["part", "contestant", "value", "low", "high"])
    level = {"part": "level", "contestant": MAJORITY, "value": own["value"].mean(), "low": np.nan, "high": np.nan}
    return pd.DataFrame([level])


def _widest(rows: pd.DataFrame) -> list[str]:
    """The tasks on which single draws differ most, at most a figure full, in order of family and name."""
    spreads = rows.groupby(["task", "contestant"])["value"].std().groupby("task").max()
    widest = set(spreads.sort_values(ascending=False, kind="stable").index[:AT_MOST])
    order = rows[["family", "task"]].drop_duplicates().sort_values(["family", "task"])
    return [task for task in order["task"] if task in widest]


def around(rows: pd.DataFrame) -> tuple[float, float]:
    """A range that shows small changes of an accuracy."""
    ends = rows[["value", "low", "high"]].astype(float)
    return max(0.0, float(ends.min().min()) - 0.02), min(1.02, float(ends.max().max()) + 0.02)
