"""Score against cost: the models on the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.core.formats import Number, fixed, plural, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Figure, Section, Table, Text
from iclbench.report.cost_table import rows_of_one_machine
from iclbench.report.data import Results
from iclbench.report.figures import pareto as figures
from iclbench.tables.means import means_over_seeds

_ALL = "all tasks"
_MARK_CAPTION = "Dashed: the Pareto front, with the names of its models."
_INTRODUCTION = (
    "A model is on the Pareto front unless another model has at least its score at a lower cost, or a higher score at "
    "no higher cost. Fronts are computed from means over seeds, without a test of significance."
)


@dataclass(frozen=True)
class Cost:
    """A cost by its phase and metric in the table of costs.

    A `sized` cost is measured after several numbers of points, of which the largest is used. For a cost that depends on
    the machine, only values from the machine with the most runs are used.
    """

    title: str
    phase: str
    metric: str
    sized: bool = False

    @property
    def key(self) -> str:
        return slug(self.phase, self.metric)


FLOPS = Cost("FLOPs of a training step", "train_step", "flops")
STATE = Cost("bytes of the state", "condition", "state_bytes", sized=True)
COSTS = (
    FLOPS,
    Cost("seconds of training", "train", "seconds"),
    STATE,
    Cost("parameters", "model", "parameters"),
)
# Costs that differ by a smaller factor are not plotted. The numbers of parameters of a preset are nearly equal by
# design.
_MIN_COST_RATIO = 1.2


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        blocks += _preset_blocks(results, preset, normalised.contests(results, preset))
    return (
        Section("pareto", "Score against cost", (Text(_INTRODUCTION), *blocks), rules=("Costs", "Score"))
        if blocks
        else None
    )


def cost_points(contests: Sequence[Contest], cost: Cost) -> pd.DataFrame:
    """A row per contest and backbone with a score and this cost: columns task, panel, contestant, cost, score, front,
    shown, run."""
    frames = []
    for contest in contests:
        scores = contest.scores[contest.scores["kind"] == "backbone"]
        rows = scores.merge(mean_costs(contest, cost), on="contestant")
        rows = rows.assign(panel=contest.title, task=contest.task.id)
        frames.append(rows.assign(front=figures.is_on_front(rows)))
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(shown=frame["cost"].map(metric(cost.metric).show))[["task", *figures.COLUMNS]]


def overall_points(by_panel: pd.DataFrame, title: str, show: Callable[[Number], str]) -> pd.DataFrame:
    """Mean scores and geometric mean costs over all tasks, for the backbones in all panels.

    The panels of a task (its tests) are averaged first. Columns as in `cost_points`, without task.
    """
    n_panels = by_panel["panel"].nunique()
    by_task = (
        by_panel.assign(log=np.log(by_panel["cost"]))
        .groupby(["contestant", "task"], as_index=False)
        .agg(score=("score", "mean"), log=("log", "mean"), panels=("panel", "nunique"), run=("run", "first"))
    )
    rows = by_task.groupby("contestant", as_index=False).agg(
        score=("score", "mean"), log=("log", "mean"), panels=("panels", "sum"), run=("run", "; ".join)
    )
    rows = rows[rows["panels"] == n_panels]
    rows = rows.assign(cost=np.exp(rows["log"]), panel=title)
    return rows.assign(front=figures.is_on_front(rows), shown=rows["cost"].map(show))[figures.COLUMNS]


def mean_costs(contest: Contest, cost: Cost) -> pd.DataFrame:
    """The mean cost of each contestant over runs, in the columns contestant and cost."""
    costs = contest.task.costs
    rows = cost_rows(costs[costs["run"].isin(contest.rows["run"])], cost)
    means = means_over_seeds(rows, ["contestant"]).rename(columns={"value": "cost"})
    return means[["contestant", "cost"]].astype({"cost": float})


def cost_rows(costs: pd.DataFrame, cost: Cost) -> pd.DataFrame:
    """The rows of a table of costs that contain a cost, as described in `Cost`."""
    rows = costs[costs["phase"].eq(cost.phase) & costs["metric"].eq(cost.metric) & costs["value"].gt(0)]
    if metric(cost.metric).depends_on_machine:
        rows = rows_of_one_machine(rows)
    if cost.sized and len(rows):
        # The largest of the numbers of points that were measured for the most contestants.
        counts = rows.groupby("n_points")["contestant"].nunique()
        rows = rows[rows["n_points"] == counts[counts == counts.max()].index.max()]
    return rows


def models_not_shown(contestants: Iterable[str], shown_contestants: Iterable[str]) -> list[Text]:
    """A collapsed list of the models that are not shown because they lack a row; empty if all are shown."""
    names = sorted({*contestants} - {*shown_contestants})
    text = f"Not shown, as a row is missing: {plural(len(names), 'model')}"
    return [Text(text, tuple(names), folded=True)] if names else []


def _preset_blocks(results: Results, preset: str, contests: Sequence[Contest]) -> Iterator[Block]:
    by_panel = {cost: cost_points(contests, cost) for cost in COSTS}
    by_panel = {cost: rows for cost, rows in by_panel.items() if _costs_differ(rows)}
    if not by_panel:
        return
    name = f"pareto-{slug(preset)}"
    means = {cost: overall_points(rows, cost.title, metric(cost.metric).show) for cost, rows in by_panel.items()}
    means = {cost: rows for cost, rows in means.items() if len(rows) > 1}
    note = _incomplete_costs(contests, {cost: by_panel[cost] for cost in means})
    if means and len({contest.task.id for contest in contests}) > 1:
        yield _figure(
            results,
            name,
            f"{preset}: mean score against cost",
            f"Mean score over all tasks of preset {preset} against the geometric mean of a cost. {_MARK_CAPTION}{note}",
            pd.concat(means.values(), ignore_index=True),
            [cost.title for cost in means],
        )
        yield from models_not_shown(*(pd.concat(rows.values())["contestant"] for rows in (by_panel, means)))
    cost, rows = next(iter(by_panel.items()))
    yield _figure(
        results,
        f"{name}-tasks",
        f"{preset}: score against {cost.title} by task",
        f"Score against {cost.title} for each task of preset {preset}. {_MARK_CAPTION}",
        rows,
        list(dict.fromkeys(rows["panel"])),
    )
    yield _front_table(by_panel, means, name, preset, note.strip())


def _costs_differ(rows: pd.DataFrame) -> bool:
    """Whether the contestants of any panel differ in cost by more than the factor `_MIN_COST_RATIO`."""
    ratios = rows.groupby("panel")["cost"].agg(lambda c: c.max() / c.min() if len(c) > 1 else 1.0)
    return bool((ratios > _MIN_COST_RATIO).any())


def _incomplete_costs(contests: Sequence[Contest], by_panel: dict[Cost, pd.DataFrame]) -> str:
    """A sentence on the costs that some rows lack; empty if no row lacks any."""
    n_rows = sum(bool(contest.scores["kind"].eq("backbone").any()) for contest in contests)
    counts = {cost.title: rows["panel"].nunique() for cost, rows in by_panel.items()}
    texts = [f"{title} on {n} of {n_rows} rows" for title, n in counts.items() if n < n_rows]
    return f" Incomplete: {', '.join(texts)}." if texts else ""


def _figure(results: Results, name: str, title: str, caption: str, rows: pd.DataFrame, panels: Sequence[str]) -> Figure:
    looks = {name: look for name, look in results.looks.items() if name in set(rows["contestant"])}
    return figures.figure(name, title, " ".join(caption.split()), rows, panels, looks, 3)


def _front_table(
    by_panel: dict[Cost, pd.DataFrame], means: dict[Cost, pd.DataFrame], name: str, preset: str, note: str
) -> Table:
    """The contestants on the Pareto front of each panel and cost, the cheapest first."""
    fronts: dict[str, dict[str, str]] = {}
    for cost, rows in by_panel.items():
        all_rows = pd.concat([means[cost].assign(panel=_ALL), rows]) if cost in means else rows
        for panel, front in all_rows[all_rows["front"]].sort_values("cost").groupby("panel", sort=False):
            texts = (
                f"{contestant} ({shown}, {fixed(score, 2)})"
                for contestant, shown, score in front[["contestant", "shown", "score"]].itertuples(index=False)
            )
            fronts.setdefault(str(panel), {})[cost.key] = ", ".join(texts)
    order = [_ALL, *dict.fromkeys(panel for rows in by_panel.values() for panel in rows["panel"])]
    frame = pd.DataFrame([{"row": row, **fronts[row]} for row in order if row in fronts])
    return Table(
        name=f"{name}-fronts",
        title=f"{preset}: models on the Pareto front",
        caption=f"Models on the Pareto front of each task, cheapest first, with cost and score. {note}".strip(),
        frame=frame,
        columns=(Column("row", "family"), *(Column(cost.key, cost.title) for cost in by_panel)),
        folded=True,
    )
