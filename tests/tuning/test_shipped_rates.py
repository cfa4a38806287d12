"""The learning rates that are shipped are those that their trials name, where the trials are kept."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.config.rates import Tuning, read_table, shipped_path
from iclbench.core.metrics import metric

# Beside the cards of a checkout; no part of the package.
KEPT = cards_folder("grids").parent / "benchmarks" / "grid_rates" / "rates" / "grid"
SEEDS = 3

if not KEPT.is_dir():
    pytest.skip("trials are kept in the repository alone", allow_module_level=True)


@cache
def trials() -> dict[tuple[str, str], pd.DataFrame]:
    """By task and contestant, those of tasks on which the shipped table rests with all seeds; on others not every
    contestant has its trials yet."""
    shipped = {
        each.on or task for each in read_table(shipped_path("grid")).tuned if each.seeds == SEEDS for task in each.tasks
    }
    files = [tables.read("trials", path) for path in sorted(KEPT.glob("*.trials.parquet"))]
    found = {(str(rows["task"].iloc[0]), str(rows["contestant"].iloc[0])): rows for rows in files}
    return {pair: rows for pair, rows in found.items() if pair[0] in shipped}


def groups(task: str, contestant: str) -> list[Tuning]:
    """Of the shipped table, those that rest on trials of a contestant on a task with all seeds."""
    shipped = read_table(shipped_path("grid")).tuned
    on = [each for each in shipped if each.on == task or (not each.on and task in each.tasks)]
    return [each for each in on if contestant in each.train and each.seeds == SEEDS]


@pytest.mark.parametrize(("task", "contestant"), sorted(trials()))
def test_the_rate_of_the_best_mean_is_shipped_with_all_that_were_tried(task: str, contestant: str) -> None:
    rows = trials()[task, contestant]
    assert rows.groupby("lr")["seed"].nunique().eq(SEEDS).all()
    means = rows.groupby("lr")["value"].agg(lambda values: values.mean(skipna=False)).dropna()
    best = means.idxmin() if metric(rows["metric"].iloc[0]).lower_is_better else means.idxmax()
    found = groups(task, contestant)
    assert found and {each.steps for each in found} == set(rows["steps"])
    assert {each.train[contestant].lr for each in found} == {best}
    assert all(each.train[contestant].tried == sorted(rows["lr"].unique()) for each in found)


def test_trials_of_functions_are_there_for_every_backbone_of_the_reference() -> None:
    chosen = {who for each in read_table(shipped_path("grid")).tuned if each.on == "linear" for who in each.train}
    assert {who for task, who in trials() if task == "linear"} == chosen
