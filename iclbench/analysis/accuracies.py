"""Accuracies on the tests of a family, after and during training."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.evaluators import is_test
from iclbench.analysis.slices import Slice
from iclbench.tables.means import means_over_seeds

_KEYS = ["evaluator", "kind", "contestant"]


def final(task: Slice) -> pd.DataFrame:
    """Accuracies after training, averaged over runs (seeds).

    Columns: evaluator, kind, contestant, value, low and high (the interval over episodes; for several runs, the
    envelope of their intervals), lowest and highest (over runs), runs (their number) and run (their names). For a
    backbone that was evaluated only during training, these are the accuracies at the last evaluated step. Contestants
    with a failed or diverged run are omitted.
    """
    return task.without_failed(means_over_seeds(_final_rows(task), _KEYS).assign(shift="none")).drop(columns="shift")


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


def _final_rows(task: Slice) -> pd.DataFrame:
    """The rows after training or, for runs without such rows, the rows of the last evaluated training step."""
    rows = task.accuracies_by_run
    rows_after_training, steps = rows[rows["axis"].isna()], rows[rows["axis"].notna()]
    last_steps = steps[steps["axis_value"] == steps.groupby([*_KEYS, "run"])["axis_value"].transform("max")]
    return pd.concat([rows_after_training, last_steps]).drop_duplicates([*_KEYS, "run"])
