"""The shipped learning rates are the best ones of their trials, which are in the repository only."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.config.rates import Tuning, read_table, shipped_path
from iclbench.core.metrics import metric

# In a checkout next to the cards; not part of the package.
TRIALS = cards_folder("grids").parent / "benchmarks" / "grid_rates" / "rates" / "grid"
SEEDS = 3

if not TRIALS.is_dir():
    pytest.skip("the trials are in the repository only", allow_module_level=True)


@cache
def trials() -> dict[tuple[str, str], pd.DataFrame]:
    """The trials by task and contestant, of tasks for which the shipped table uses all seeds; on other tasks, trials of
    some contestants are missing."""
    shipped = {
        each.on or task for each in read_table(shipped_path("grid")).tuned if each.seeds == SEEDS for task in each.tasks
    }
    files = [tables.read("trials", path) for path in sorted(TRIALS.glob("*.trials.parquet"))]
    by_pair = {(str(rows["task"].iloc[0]), str(rows["contestant"].iloc[0])): rows for rows in files}
    return {pair: rows for pair, rows in by_pair.items() if pair[0] in shipped}


def groups(task: str, contestant: str) -> list[Tuning]:
    """The groups of the shipped table that use trials of a contestant on a task with all seeds."""
    shipped = read_table(shipped_path("grid")).tuned
    tunings = [each for each in shipped if each.on == task or (not each.on and task in each.tasks)]
    return [each for each in tunings if contestant in each.train and each.seeds == SEEDS]


@pytest.mark.parametrize(("task", "contestant"), sorted(trials()))
def test_the_rate_with_the_best_mean_is_shipped_with_all_tried_rates(task: str, contestant: str) -> None:
    rows = trials()[task, contestant]
    assert rows.groupby("lr")["seed"].nunique().eq(SEEDS).all()
    means = rows.groupby("lr")["value"].agg(lambda values: values.mean(skipna=False)).dropna()
    best = means.idxmin() if metric(rows["metric"].iloc[0]).lower_is_better else means.idxmax()
    tunings = groups(task, contestant)
    assert tunings and {each.steps for each in tunings} == set(rows["steps"])
    assert {each.train[contestant].lr for each in tunings} == {best}
    assert all(each.train[contestant].tried == sorted(rows["lr"].unique()) for each in tunings)


def test_every_contestant_tuned_on_linear_functions_has_trials() -> None:
    tuned = {name for each in read_table(shipped_path("grid")).tuned if each.on == "linear" for name in each.train}
    assert {name for task, name in trials() if task == "linear"} == tuned
