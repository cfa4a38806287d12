"""Selection and order of the predictions in figures of single episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from iclbench.analysis.target_scores import over_all_episodes
from iclbench.report.data import Slice

# Largest number of predictions per row.
MAX_COLUMNS = 4


@dataclass(frozen=True)
class DrawnContestant:
    """A contestant with a number of related datasets in its prompts.

    Attributes:
        contestant: name of the contestant.
        n_related: number of related datasets.
        uses_related: whether the contestant uses related datasets.
    """

    contestant: str
    n_related: int
    uses_related: bool

    @property
    def title(self) -> str:
        """The name, with the number of related datasets if the contestant uses them."""
        return self.contestant + (f", {self.n_related} related" if self.uses_related else "")


def pixel_count(examples: pd.DataFrame) -> int | None:
    """The number of pixels of an image; None if the inputs are not a complete grid of two coordinates."""
    inputs = examples.loc[examples["role"] == "predicted", ["x1", "x2"]].drop_duplicates()
    if inputs.empty or inputs["x2"].isna().any():
        return None
    grid_size = inputs["x1"].nunique() * inputs["x2"].nunique()
    return grid_size if len(inputs) == grid_size else None


def first_run_rows(examples: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first run (seed) of each contestant."""
    first_runs = examples.groupby("contestant")["run"].transform("min")
    return examples[examples["run"] == first_runs]


def all_contestants(task: Slice, examples: pd.DataFrame) -> list[DrawnContestant]:
    """All contestants in the examples, each with all its numbers of related datasets, the best contestant first."""
    predicted_rows = examples[examples["role"] == "predicted"]
    by_contestant = predicted_rows.groupby("contestant")["n_related"]
    counts = {str(name): sorted({int(v) for v in column.dropna()} or {0}) for name, column in by_contestant}
    scores = over_all_episodes(task.targets)
    scores = scores[(scores["shift"] == "none") & scores["metric"].isin(["log_likelihood", "squared_error"])]
    # Any log-likelihood ranks above any squared error.
    merit = scores["value"].where(scores["metric"] == "log_likelihood", -1e6 - scores["value"])
    best = merit.groupby(scores["contestant"]).max()
    order = sorted(counts, key=lambda name: (-float(best.get(name, float("-inf"))), name))
    return [DrawnContestant(name, n, max(counts[name]) > 0) for name in order for n in counts[name]]


def main_contestants(task: Slice, contestants: Sequence[DrawnContestant]) -> list[DrawnContestant]:
    """At most `MAX_COLUMNS` backbones: the best one that ignores related datasets; the best one that uses them, at each
    number of related datasets; and further backbones that ignore them."""
    backbones = [drawn for drawn in contestants if task.kinds.get(drawn.contestant) == "backbone"]
    with_related = [drawn for drawn in backbones if drawn.uses_related]
    without_related = [drawn for drawn in backbones if not drawn.uses_related]
    best_with_related = [drawn for drawn in with_related if drawn.contestant == with_related[0].contestant]
    return [*without_related[:1], *best_with_related, *without_related[1:]][:MAX_COLUMNS]
