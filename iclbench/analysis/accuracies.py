"""Accuracies on the tests of a family, after and during training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from iclbench.analysis import scores
from iclbench.analysis.evaluators import is_test
from iclbench.analysis.slices import Slice
from iclbench.tables.evaluators import MAIN_ACCURACY
from iclbench.tables.means import means_over_seeds

_KEYS = ["evaluator", "kind", "contestant"]


def leaderboards(task: Slice, questions: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """The leaderboards of several questions by accuracy after training, without contestants that lack the accuracy.

    Runs that were evaluated only during training are ranked by their accuracy at the last evaluated step.

    Args:
        task: the results of one task at one preset.
        questions: pairs of evaluator and shift.

    Returns:
        The rows of `scores.leaderboard`, one question after the other. A table with a column per question lists the
        contestants in the order of their first rows: the leaderboard of the first question, followed by the contestants
        that only have other accuracies.
    """
    task = _with_last_steps(task)
    boards = [scores.leaderboard(task, *question, MAIN_ACCURACY, partial=True) for question in questions]
    rows = pd.concat(boards, ignore_index=True)
    return rows[rows["metric"].eq(MAIN_ACCURACY)]


def final(task: Slice) -> pd.DataFrame:
    """Accuracies after training, averaged over runs (seeds).

    Columns: evaluator, kind, contestant, value, low and high (the interval over episodes; for several runs, the
    envelope of their intervals), lowest and highest (over runs), runs (their number) and run (their names). For a
    backbone that was evaluated only during training, these are the accuracies at the last evaluated step. Contestants
    with a failed or diverged run are omitted.
    """
    rows = _with_last_steps(task).accuracies_by_run
    means = means_over_seeds(rows[rows["axis"].isna()], _KEYS).assign(shift="none")
    return task.without_failed(means).drop(columns="shift")


def trajectory(task: Slice) -> pd.DataFrame:
    """Accuracies during training, averaged over runs (seeds), with the training step in `axis_value`. Steps at which
    only some runs of a contestant were evaluated are omitted, because the mean would jump there."""
    rows = task.accuracies_by_run[task.accuracies_by_run["axis"].notna()]
    steps = means_over_seeds(rows, [*_KEYS, "axis_value"])
    return steps[steps["runs"] == steps.groupby(_KEYS)["runs"].transform("max")].reset_index(drop=True)


def peaks(steps: pd.DataFrame, evaluator: str = "icl") -> pd.DataFrame:
    """For each contestant, the row of a `trajectory` with the highest mean accuracy; the earliest one if several are
    equal."""
    steps = steps[steps["evaluator"] == evaluator].sort_values("axis_value")
    best = steps.sort_values("value", ascending=False, kind="stable").drop_duplicates("contestant")
    return best.sort_values("contestant", ignore_index=True)


def has_tests(task: Slice) -> bool:
    """Whether any test of the family was evaluated."""
    return bool(is_test(task.accuracies_by_run["evaluator"]).any())


def _with_last_steps(task: Slice) -> Slice:
    """The slice in which the accuracy of a run at the last evaluated training step counts as its accuracy after
    training, if it has no other."""
    rows, keys = task.rows, ["evaluator", "run"]
    rows = rows[rows["metric"].eq(MAIN_ACCURACY) & rows["shift"].eq("none") & rows["status"].eq("ok")]
    rows_after_training, steps = rows[rows["axis"].isna()], rows[rows["axis"].eq("train_step").fillna(False)]
    last_steps = steps[steps["axis_value"] == steps.groupby(keys)["axis_value"].transform("max")]
    last_steps = last_steps[~last_steps.set_index(keys).index.isin(rows_after_training.set_index(keys).index)]
    if last_steps.empty:  # the most frequent case
        return task
    all_rows = task.results.rows
    is_last_step = all_rows.index.isin(last_steps.index)
    columns = {name: all_rows[name].mask(is_last_step) for name in ("axis", "axis_value")}
    return replace(task, results=replace(task.results, rows=all_rows.assign(**columns)))
