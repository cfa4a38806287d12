"""The shipped learning rates follow the one-standard-error rule. Their trials are only in the repository."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.config.rates import Tuning, read_table, shipped_path
from iclbench.core.metrics import metric

# In a checkout, this folder is next to the cards. It is not part of the package.
TRIALS = cards_folder("grids").parent / "benchmarks" / "grid_rates" / "rates" / "grid"
SEEDS = 3
# The reference results of these models use the rate with the best mean. They are not retrained at the smaller rate yet.
BEST_MEAN = {
    ("linear", "gated-deltanet"),
    ("linear", "gpt2-sinusoidal"),
    ("linear", "mamba2"),
    ("gp-mixture", "mambaformer"),
    ("point-process", "gated-deltanet"),
    ("point-process", "mamba"),
    ("point-process", "mambaformer"),
}

if not TRIALS.is_dir():
    pytest.skip("the trials are in the repository only", allow_module_level=True)


@cache
def trials() -> dict[tuple[str, str], pd.DataFrame]:
    """The trials by task and contestant, for tasks for which the shipped table uses all seeds. On other tasks, trials
    of some contestants are missing."""
    shipped = {
        each.on or task for each in read_table(shipped_path("grid")).tuned if each.seeds == SEEDS for task in each.tasks
    }
    files = [tables.read("trials", path) for path in sorted(TRIALS.glob("*.trials.parquet"))]
    by_pair = {(str(rows["task"].iloc[0]), str(rows["contestant"].iloc[0])): rows for rows in files}
    return {pair: rows for pair, rows in by_pair.items() if pair[0] in shipped}


def groups(task: str, contestant: str) -> list[Tuning]:
    """The groups of the shipped table that use the trials of a contestant on a task with all seeds."""
    shipped = read_table(shipped_path("grid")).tuned
    tunings = [each for each in shipped if each.on == task or (not each.on and task in each.tasks)]
    return [each for each in tunings if contestant in each.train and each.seeds == SEEDS]


@pytest.mark.parametrize(("task", "contestant"), sorted(trials()))
def test_the_smallest_rate_within_one_standard_error_of_the_best_mean_is_shipped(task: str, contestant: str) -> None:
    rows = trials()[task, contestant]
    assert rows.groupby("lr")["seed"].nunique().eq(SEEDS).all()
    by_rate = rows.groupby("lr")["value"]
    means = by_rate.agg(lambda values: values.mean(skipna=False)).dropna()
    errors = means if metric(rows["metric"].iloc[0]).lower_is_better else -means
    best = errors.idxmin()
    standard_error = by_rate.std()[best] / SEEDS**0.5
    smallest = errors.index[errors <= errors[best] + standard_error].min()
    tunings = groups(task, contestant)
    assert tunings and {each.steps for each in tunings} == set(rows["steps"])
    assert {each.train[contestant].lr for each in tunings} == {best if (task, contestant) in BEST_MEAN else smallest}
    assert (smallest != best) or (task, contestant) not in BEST_MEAN
    assert all(each.train[contestant].tried == sorted(rows["lr"].unique()) for each in tunings)


def test_every_contestant_tuned_on_linear_functions_has_trials() -> None:
    tuned = {name for each in read_table(shipped_path("grid")).tuned if each.on == "linear" for name in each.train}
    assert {name for task, name in trials() if task == "linear"} == tuned
