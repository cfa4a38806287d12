"""The episodes that are drawn: the table of examples, and the order of contestants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from iclbench.analysis.target_scores import overall
from iclbench.report.data import Slice

# Contestants and numbers of related datasets side by side.
COLUMNS = 4


@dataclass(frozen=True)
class Shown:
    """A contestant, and how many related datasets it was given."""

    contestant: str
    n_related: int
    related: bool

    @property
    def title(self) -> str:
        """The name, and the number of related datasets where it uses them."""
        return self.contestant + (f", {self.n_related} related" if self.related else "")


def pixels(examples: pd.DataFrame) -> int | None:
    """The number of pixels of an image, where the inputs are two coordinates that fill a grid."""
    inputs = examples.loc[examples["role"] == "predicted", ["x1", "x2"]].drop_duplicates()
    if inputs.empty or inputs["x2"].isna().any():
        return None
    full = inputs["x1"].nunique() * inputs["x2"].nunique()
    return full if len(inputs) == full else None


def one_run(examples: pd.DataFrame) -> pd.DataFrame:
    """The rows of one run per contestant: the first of several seeds."""
    first = examples.groupby("contestant")["run"].transform("min")
    return examples[examples["run"] == first]


def everyone(task: Slice, examples: pd.DataFrame) -> list[Shown]:
    """Every contestant with every number of related datasets that it was drawn with; the best first."""
    predicted = examples[examples["role"] == "predicted"]
    given = predicted.groupby("contestant")["n_related"]
    asked = {str(name): sorted({int(v) for v in counts.dropna()} or {0}) for name, counts in given}
    scores = overall(task.targets)
    scores = scores[(scores["shift"] == "none") & scores["metric"].isin(["log_likelihood", "squared_error"])]
    # A likelihood comes before any squared error.
    merit = scores["value"].where(scores["metric"] == "log_likelihood", -1e6 - scores["value"])
    best = merit.groupby(scores["contestant"]).max()
    order = sorted(asked, key=lambda name: (-float(best.get(name, float("-inf"))), name))
    return [Shown(name, n, max(asked[name]) > 0) for name in order for n in asked[name]]


def side_by_side(task: Slice, shown: Sequence[Shown]) -> list[Shown]:
    """The best backbone without related datasets, then the best that uses them by their number, then further ones."""
    kinds = task.kinds
    backbones = [s for s in shown if kinds.get(s.contestant) == "backbone"]
    alone, with_related = [s for s in backbones if not s.related], [s for s in backbones if s.related]
    best = [s for s in with_related if s.contestant == with_related[0].contestant]
    return [*alone[:1], *best, *alone[1:]][:COLUMNS]
