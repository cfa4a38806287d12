"""The shipped learning rates follow the rules in benchmarks/grid_rates.md. Their trials are in the repository only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.config.rates import Tuning, read_table, shipped_path
from iclbench.core.metrics import metric

# In a checkout, this folder is next to the cards. It is not part of the package.
TRIALS = cards_folder("grids").parent / "benchmarks" / "grid_rates" / "rates" / "grid"
PACKED = cards_folder("grids").parent / "results" / "reference"
SEEDS = 3
# Tasks with one tuning seed: the shipped rate is the smallest one within this distance of the best value.
TOLERANCES = {"markov": 0.002, "linear-system": 0.005, "recall-overwrite": 0.05}

if not TRIALS.is_dir():
    pytest.skip("the trials are in the repository only", allow_module_level=True)


@cache
def trials() -> dict[tuple[str, str], pd.DataFrame]:
    """Return the trials by task and contestant, for tasks for which the shipped table uses all seeds. On other tasks,
    trials of some contestants are missing."""
    shipped = {
        each.on or task for each in read_table(shipped_path("grid")).tuned if each.seeds == SEEDS for task in each.tasks
    }
    return {pair: rows for pair, rows in all_trials().items() if pair[0] in shipped}


@cache
def all_trials() -> dict[tuple[str, str], pd.DataFrame]:
    files = [tables.read("trials", path) for path in sorted(TRIALS.glob("*.trials.parquet"))]
    return {(str(rows["task"].iloc[0]), str(rows["contestant"].iloc[0])): rows for rows in files}


def groups(task: str, contestant: str) -> list[Tuning]:
    """Return the groups of the shipped table that use the trials of a contestant on a task with all seeds."""
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
    assert {each.train[contestant].lr for each in tunings} == {smallest}
    assert all(each.train[contestant].tried == sorted(rows["lr"].unique()) for each in tunings)


def test_every_contestant_tuned_on_linear_functions_has_trials() -> None:
    tuned = {name for each in read_table(shipped_path("grid")).tuned if each.on == "linear" for name in each.train}
    assert {name for task, name in trials() if task == "linear"} == tuned


def test_with_one_seed_the_smallest_rate_near_the_best_value_is_shipped() -> None:
    shipped = {
        (each.on or each.tasks[0], name): choice
        for each in read_table(shipped_path("grid")).tuned
        if each.seeds == 1 and (each.on or each.tasks[0]) in TOLERANCES
        for name, choice in each.train.items()
    }
    assert set(shipped) == {pair for pair in all_trials() if pair[0] in TOLERANCES}
    for (task, contestant), choice in shipped.items():
        values = all_trials()[task, contestant].set_index("lr")["value"].sort_index()
        assert values.index.is_unique and choice.tried == values.index.tolist()
        assert choice.lr == values.index[values <= values.min() + TOLERANCES[task]][0], (task, contestant)


@pytest.mark.parametrize("path", sorted(PACKED.glob("*-grid.trials.parquet")), ids=lambda path: path.name)
def test_trials_packed_with_the_reference_equal_those_of_the_search(path: Path) -> None:
    columns, keys = ["contestant", "lr", "seed", "variant", "value", "prompt_set"], ["contestant", "lr", "seed"]
    packed = tables.read("trials", path)
    searched = pd.concat([rows for pair, rows in all_trials().items() if pair[0] == packed["task"].iloc[0]])
    pd.testing.assert_frame_equal(
        packed[columns].sort_values(keys, ignore_index=True), searched[columns].sort_values(keys, ignore_index=True)
    )
