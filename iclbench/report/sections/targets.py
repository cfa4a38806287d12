"""Leaderboard for the question `targets`: log-likelihood with ranks, squared error, calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from iclbench.analysis.scores import displayed_columns, leaderboard, metric_columns
from iclbench.analysis.target_scores import has_joint, over_all_episodes
from iclbench.core.formats import fixed, number
from iclbench.core.metrics import METRICS, metric
from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.data import Slice
from iclbench.report.sections.leaderboard import (
    column_meanings,
    cost_column,
    paper_tables,
    remarks,
    shown_columns,
    with_costs,
)

_METRICS = ("log_likelihood", "log_likelihood_gaussian", "squared_error", "covered_50", "covered_90")
_METRICS_OF_OTHER_SECTIONS = ("gap", "gap_joint", "score", "log_likelihood_adjusted")


def section(task: Slice) -> Section | None:
    rows = over_all_episodes(task.targets)
    rows = rows[(rows["shift"] == "none") & ~rows["metric"].isin(_METRICS_OF_OTHER_SECTIONS)]
    if not rows["metric"].isin(_METRICS).any():
        return None
    has_areas = task.summaries["metric"].eq("auc") & task.summaries["shift"].eq("none")
    tables_for_paper = () if has_areas.any() else paper_tables(task)  # the leaderboard by area includes them
    notes = (*_no_likelihood_text(rows), *remarks(task, "targets"))
    return Section(
        f"{task.id}-targets",
        "Leaderboard",
        (leaderboard_table(task, rows), *tables_for_paper, *notes),
        rules=("Calibration", "Intervals", "Behind", "Rank in a leaderboard"),
    )


def _no_likelihood_text(rows: pd.DataFrame) -> tuple[Text, ...]:
    """A line with the methods that have no log-likelihood; empty if all or none have it."""
    has_likelihood = rows["metric"].eq("log_likelihood").groupby(rows["contestant"]).any()
    names = ", ".join(sorted(has_likelihood.index[~has_likelihood]))
    if not names or not has_likelihood.any():
        return ()
    return (Text(f"Without a log-likelihood, because they predict values and not distributions: {names}."),)


def leaderboard_table(task: Slice, rows: pd.DataFrame) -> Table:
    """The leaderboard: a row per contestant and number of related datasets (none, one and the most)."""
    other_names = other_metrics(rows["metric"])
    if "log_likelihood_joint" in other_names and not has_joint(rows):
        other_names.remove("log_likelihood_joint")
    ranking = leaderboard(task, "targets", by="log_likelihood")
    has_likelihood = ranking["metric"].eq("log_likelihood")  # point predictors have no rank
    comparisons = ("rank", "behind", "behind_low", "behind_high")
    ranking = ranking.assign(**{name: ranking[name].where(has_likelihood) for name in comparisons})
    fields = ("value", "low", "high", "n_episodes")
    values = metric_columns(task, "targets", (*_METRICS, *other_names), fields=fields)
    frame = with_costs(task, displayed_columns(ranking).merge(values, "left", ["contestant", "n_related"]))
    columns = shown_columns(
        frame,
        _metric_column("log_likelihood", "log-likelihood", fixed),
        Column("log_likelihood_gaussian", "as one Gaussian", fixed, True, episodes="log_likelihood_gaussian_episodes"),
        _metric_column("squared_error", "squared error", number),
        Column("covered_50", "in the 50 % interval", _percent, True, episodes="covered_50_episodes"),
        Column("covered_90", "in the 90 % interval", _percent, True, episodes="covered_90_episodes"),
        *(_metric_column(name, metric(name).label, metric(name).show) for name in other_names),
        *map(cost_column, ("parameters", "train_seconds")),
    )
    if not frame["n_related"].any():
        columns = tuple(c for c in columns if c.key != "n_related")
    return Table(
        name=f"{task.id}-leaderboard-targets",
        title=f"{task.task}: leaderboard",
        caption="Models and baselines by log-likelihood per target (nats, higher is better), with squared error and "
        f"the share of targets in the central 50 % and 90 % intervals.{column_meanings(columns)}",
        frame=frame,
        columns=columns,
        group="rank",
    )


def other_metrics(measured: Iterable[str]) -> list[str]:
    """The measured metrics that are neither in `_METRICS` nor in another section, in the order of `METRICS`; unknown
    metrics come last."""
    order = {name: place for place, name in enumerate(METRICS)}
    names = set(map(str, measured)) - {*_METRICS, *_METRICS_OF_OTHER_SECTIONS}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def _metric_column(key: str, header: str, show: Callable[[Any], str]) -> Column:
    """A column with intervals, and with the number of episodes for means over fewer episodes than the others."""
    return Column(key, header, show, True, f"{key}_low", f"{key}_high", episodes=f"{key}_episodes")


def _percent(share: float) -> str:
    return f"{100 * float(share):.1f} %"
