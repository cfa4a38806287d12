"""Means over the runs (seeds) of a contestant, which name the runs that they are made of."""

from __future__ import annotations

import pandas as pd


def average(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per key: the mean over runs, the envelope of their intervals, the number of runs and of episodes.

    The column `run` says which runs these are (`run_names`); of a single one it is its name.
    """
    groups = rows.groupby(keys, as_index=False, dropna=False)
    averaged = groups.agg(
        value=("value", "mean"), low=("low", "min"), high=("high", "max"), runs=("run", "nunique"),
        n_episodes=("n_episodes", "min"),
    )  # fmt: skip
    return averaged if "run" in keys else averaged.assign(run=run_names(rows, keys))


def run_names(rows: pd.DataFrame, keys: list[str]) -> list[str]:
    """For every key, in the order of `groupby`, the names of its runs with `; ` between them."""
    number = rows.groupby(keys, dropna=False).ngroup()
    names: dict[int, dict[str, None]] = {}
    for group, run in sorted(set(zip(number, rows["run"], strict=True))):
        names.setdefault(group, {})[run] = None
    return ["; ".join(names[group]) for group in sorted(names)]
