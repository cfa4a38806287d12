"""Score against cost: the models on the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.core.formats import Number, fixed, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Figure, Section, Table, Text
from iclbench.report.cost_table import of_one_machine
from iclbench.report.data import Results
from iclbench.report.figures import pareto as figures
from iclbench.tables.means import over_seeds

_ALL = "all tasks"
_READING = (
    "A model is on the Pareto front if no other model is both as cheap and as good. Fronts are computed from means "
    "over seeds, without a test of significance."
)


@dataclass(frozen=True)
class Cost:
    """A cost by its phase and metric in the table; `sized`: it is asked for a number of points, the largest counts.
    Where it depends on the machine, only the one with most runs counts."""

    title: str
    phase: str
    metric: str
    sized: bool = False

    @property
    def key(self) -> str:
        return slug(self.phase, self.metric)


FLOPS = Cost("FLOPs of a training step", "train_step", "flops")
COSTS = (
    FLOPS,
    Cost("seconds of training", "train", "seconds"),
    Cost("bytes of the state", "condition", "state_bytes", sized=True),
    Cost("parameters", "model", "parameters"),
)
# Costs that differ by a smaller factor are not compared: a preset makes parameters nearly equal by design.
_ALIKE = 1.2


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        blocks += _of_preset(results, preset, normalised.contests(results, preset))
    return Section("pareto", "Score against cost", (Text(_READING), *blocks)) if blocks else None


def points(contests: Sequence[Contest], cost: Cost) -> pd.DataFrame:
    """A row per contest and backbone that has both numbers: columns task, panel, contestant, cost, score, front, shown,
    run."""
    parts = []
    for contest in contests:
        own = contest.scores[contest.scores["kind"] == "backbone"]
        costs = measured(contest, cost)
        rows = own.merge(costs, on="contestant").assign(panel=contest.title, task=contest.task.id)
        parts.append(rows.assign(front=figures.front(rows)))
    found = pd.concat(parts, ignore_index=True)
    return found.assign(shown=found["cost"].map(metric(cost.metric).show))[["task", *figures.COLUMNS]]


def overall(each: pd.DataFrame, title: str, show: Callable[[Number], str]) -> pd.DataFrame:
    """The same over all tasks that have this cost, of whose tests the mean counts: the mean score and the geometric
    mean of costs of the backbones that are in all."""
    number = each["panel"].nunique()
    one = (
        each.assign(log=np.log(each["cost"]))
        .groupby(["contestant", "task"], as_index=False)
        .agg(score=("score", "mean"), log=("log", "mean"), panels=("panel", "nunique"), run=("run", "first"))
    )
    rows = one.groupby("contestant", as_index=False).agg(
        score=("score", "mean"), log=("log", "mean"), panels=("panels", "sum"), run=("run", "; ".join)
    )
    rows = rows[rows["panels"] == number]
    rows = rows.assign(cost=np.exp(rows["log"]), panel=title)
    return rows.assign(front=figures.front(rows), shown=rows["cost"].map(show))[figures.COLUMNS]


def measured(contest: Contest, cost: Cost) -> pd.DataFrame:
    """Columns contestant and cost: the mean over runs."""
    rows = contest.task.costs
    rows = rows[(rows["phase"] == cost.phase) & (rows["metric"] == cost.metric) & rows["value"].gt(0)]
    rows = rows[rows["run"].isin(contest.rows["run"])]
    if metric(cost.metric).of_machine:
        rows = of_one_machine(rows)
    if cost.sized and len(rows):
        asked = rows.groupby("n_points")["contestant"].nunique()
        rows = rows[rows["n_points"] == asked[asked == asked.max()].index.max()]
    means = over_seeds(rows, ["contestant"]).rename(columns={"value": "cost"})
    return means[["contestant", "cost"]].astype({"cost": float})


def _of_preset(results: Results, preset: str, contests: Sequence[Contest]) -> Iterator[Block]:
    each = {cost: points(contests, cost) for cost in COSTS}
    each = {cost: rows for cost, rows in each.items() if _tells(rows)}
    if not each:
        return
    name = f"pareto-{slug(preset)}"
    means = {cost: overall(rows, cost.title, metric(cost.metric).show) for cost, rows in each.items()}
    means = {cost: rows for cost, rows in means.items() if len(rows) > 1}
    few = _of_some(contests, {cost: each[cost] for cost in means})
    if means and len({contest.task.id for contest in contests}) > 1:
        yield _figure(
            results,
            name,
            f"{preset}: mean score against cost",
            f"Mean score over all tasks of preset {preset} against the geometric mean of a cost. {_MARKS}{few}"
            + normalised.not_shown_note(*(pd.concat(of.values())["contestant"] for of in (each, means))),
            pd.concat(means.values(), ignore_index=True),
            [cost.title for cost in means],
        )
    cost, rows = next(iter(each.items()))
    yield _figure(
        results,
        f"{name}-tasks",
        f"{preset}: score against {cost.title} by task",
        f"Score against {cost.title} for each task of preset {preset}. {_MARKS}",
        rows,
        list(dict.fromkeys(rows["panel"])),
    )
    yield _fronts(each, means, name, preset, few.strip())


_MARKS = "Dashed: the Pareto front, with the names of its models."


def _tells(rows: pd.DataFrame) -> bool:
    """Whether there is a panel whose contestants differ in cost."""
    spread = rows.groupby("panel")["cost"].agg(lambda c: c.max() / c.min() if len(c) > 1 else 1.0)
    return bool((spread > _ALIKE).any())


def _of_some(contests: Sequence[Contest], each: dict[Cost, pd.DataFrame]) -> str:
    """The costs that are known on some of the rows only, in a sentence; empty if there are none."""
    number = sum(bool(contest.scores["kind"].eq("backbone").any()) for contest in contests)
    few = {cost.title: rows["panel"].nunique() for cost, rows in each.items()}
    said = [f"{title} on {n} of {number} rows" for title, n in few.items() if n < number]
    return f" Known only in part: {', '.join(said)}." if said else ""


def _figure(results: Results, name: str, title: str, caption: str, rows: pd.DataFrame, panels: Sequence[str]) -> Figure:
    looks = {who: results.looks[who] for who in results.looks if who in set(rows["contestant"])}
    return figures.figure(name, title, " ".join(caption.split()), rows, panels, looks, 3)


def _fronts(
    each: dict[Cost, pd.DataFrame], means: dict[Cost, pd.DataFrame], name: str, preset: str, note: str
) -> Table:
    """The contestants on the front of every task and cost, the cheapest first."""
    named: dict[str, dict[str, str]] = {}
    for cost, rows in each.items():
        both = pd.concat([means[cost].assign(panel=_ALL), rows]) if cost in means else rows
        for panel, own in both[both["front"]].sort_values("cost").groupby("panel", sort=False):
            said = (
                f"{who} ({shown}, {fixed(score, 2)})"
                for who, shown, score in zip(own["contestant"], own["shown"], own["score"], strict=True)
            )
            named.setdefault(str(panel), {})[cost.key] = ", ".join(said)
    order = [_ALL, *dict.fromkeys(panel for rows in each.values() for panel in rows["panel"])]
    frame = pd.DataFrame([{"row": row, **named[row]} for row in order if row in named])
    return Table(
        name=f"{name}-fronts",
        title=f"{preset}: models on the Pareto front",
        caption=f"Models on the Pareto front of each task, cheapest first, with cost and score. {note}".strip(),
        frame=frame,
        columns=(Column("row", "family"), *(Column(cost.key, cost.title) for cost in each)),
        folded=True,
    )
