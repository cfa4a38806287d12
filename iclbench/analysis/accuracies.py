"""Accuracies on the tests of a family, after and during training."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.evaluators import is_test
from iclbench.analysis.slices import Slice
from iclbench.tables.means import means_over_seeds

_KEYS = ["evaluator", "kind", "contestant"]


def final(task: Slice) -> pd.DataFrame:
    """Accuracies after training, averaged over runs (seeds).

    Columns evaluator, kind, contestant, value, low, high (the interval over episodes; the envelope for several runs),
    lowest, highest (of the runs), runs and run (their names). For a backbone that was evaluated only during training,
    the last step is used. Contestants with a failed or diverged run have no rows.
    """
    return task.without_failed(means_over_seeds(_final_rows(task), _KEYS).assign(shift="none")).drop(columns="shift")


def trajectory(task: Slice) -> pd.DataFrame:
    """Accuracies during training, with the step in `axis_value`, at steps at which every run of a contestant was
    evaluated; otherwise their mean would jump."""
    rows = task.accuracies_by_run[task.accuracies_by_run["axis"].notna()]
    steps = means_over_seeds(rows, [*_KEYS, "axis_value"])
    return steps[steps["runs"] == steps.groupby(_KEYS)["runs"].transform("max")].reset_index(drop=True)


def peaks(steps: pd.DataFrame, evaluator: str = "icl") -> pd.DataFrame:
    """The first step of a `trajectory` with the highest mean over runs, for each contestant."""
    steps = steps[steps["evaluator"] == evaluator].sort_values("axis_value")
    best = steps.sort_values("value", ascending=False, kind="stable").drop_duplicates("contestant")
    return best.sort_values("contestant", ignore_index=True)


def has_tests(task: Slice) -> bool:
    """Whether the family's tests were evaluated."""
    return bool(is_test(task.accuracies_by_run["evaluator"]).any())


def _final_rows(task: Slice) -> pd.DataFrame:
    """The rows after training; for runs without them the last step of training."""
    rows = task.accuracies_by_run
    rows_after_training, steps = rows[rows["axis"].isna()], rows[rows["axis"].notna()]
    last_steps = steps[steps["axis_value"] == steps.groupby([*_KEYS, "run"])["axis_value"].transform("max")]
    return pd.concat([rows_after_training, last_steps], ignore_index=True).drop_duplicates(
        [*_KEYS, "run"], keep="first"
    )
