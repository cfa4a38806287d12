"""Means over the runs (seeds) of a contestant, which name the runs that they are made of."""

from __future__ import annotations

import pandas as pd


def average(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per key: the mean over runs, the envelope of their intervals, the number of runs and of episodes.

    The column `run` says which runs these are (`run_names`); of a single one it is its name.
    """
    groups = rows.groupby(keys, as_index=False, dropna=False)
    number = groups.ngroup()
    if number.is_unique:  # nothing to average, which is most of what is asked for
        found = rows.iloc[number.argsort()][[*keys, "value", "low", "high", "n_episodes"]].reset_index(drop=True)
        found.insert(len(keys) + 3, "runs", 1)
        return found if "run" in keys else found.assign(run=rows["run"].iloc[number.argsort()].tolist())
    averaged = groups.agg({"value": "mean", "low": "min", "high": "max", "n_episodes": "min"})
    names = _runs(number, rows["run"])
    averaged.insert(len(keys) + 3, "runs", [len(own) for own in names])
    return averaged if "run" in keys else averaged.assign(run=["; ".join(own) for own in names])


def run_names(rows: pd.DataFrame, keys: list[str]) -> list[str]:
    """For every key, in the order of `groupby`, the names of its runs with `; ` between them."""
    return ["; ".join(own) for own in _runs(rows.groupby(keys, dropna=False).ngroup(), rows["run"])]


def _runs(number: pd.Series, runs: pd.Series) -> list[list[str]]:
    """The runs of every group, sorted, where `number` tells the group of each row."""
    names: dict[int, list[str]] = {}
    for group, run in sorted(set(zip(number.tolist(), runs.tolist(), strict=True))):
        names.setdefault(group, []).append(run)
    return [names[group] for group in sorted(names)]
