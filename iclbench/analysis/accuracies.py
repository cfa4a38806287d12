"""Accuracies on a family's own tests: what a contestant ends with, and how it got there in training."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.evaluators import is_test
from iclbench.analysis.slices import Slice
from iclbench.tables.means import over_seeds

_WHO = ["evaluator", "kind", "contestant"]


def final(task: Slice) -> pd.DataFrame:
    """The accuracy of everybody when trained, averaged over runs (seeds).

    Columns evaluator, kind, contestant, value, low, high (the interval over episodes; of several runs its lowest and
    highest end), lowest, highest (of the runs), runs and run (their names). Where a backbone was asked in training
    alone, its last step counts. None of contestants of which a run failed, or diverged in training.
    """
    return task.unfailed(over_seeds(_ends(task), _WHO).assign(shift="none")).drop(columns="shift")


def trajectory(task: Slice) -> pd.DataFrame:
    """The same in training, with the step in `axis_value`; only steps at which every run of a contestant was asked, as
    their mean would jump otherwise."""
    rows = task.test_lines[task.test_lines["axis"].notna()]
    steps = over_seeds(rows, [*_WHO, "axis_value"])
    return steps[steps["runs"] == steps.groupby(_WHO)["runs"].transform("max")].reset_index(drop=True)


def peaks(steps: pd.DataFrame, evaluator: str = "icl") -> pd.DataFrame:
    """The first step of a `trajectory` at which the mean over runs was highest."""
    steps = steps[steps["evaluator"] == evaluator].sort_values("axis_value")
    best = steps.sort_values("value", ascending=False, kind="stable").drop_duplicates("contestant")
    return best.sort_values("contestant", ignore_index=True)


def has_tests(task: Slice) -> bool:
    return bool(is_test(task.test_lines["evaluator"]).any())


def _ends(task: Slice) -> pd.DataFrame:
    """Rows of trained models; the last step in training of those that have none."""
    rows = task.test_lines
    trained, steps = rows[rows["axis"].isna()], rows[rows["axis"].notna()]
    last = steps[steps["axis_value"] == steps.groupby([*_WHO, "run"])["axis_value"].transform("max")]
    both = pd.concat([trained, last], ignore_index=True)
    return both.drop_duplicates([*_WHO, "run"], keep="first")
