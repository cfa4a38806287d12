"""Means over seeds: the one place where rows of several seeds become one.

A seed repeats a measurement with other random numbers and leaves everything else as it is. There are two kinds:

- `run`: trainings of one contestant that differ in nothing but the seed, asked the same prompts. (Runs that differ in
  more are contestants of their own, which `analysis.comparable` sees to.)
- `demo_seed`: sets of demonstrations before the same queries to a language model; `order`: orders of one set.

The value is the plain mean over seeds: each counts once, over however many episodes it is. The interval depends on the
kind:

- Runs have the envelope of their own intervals, which are over episodes: from the lowest lower to the highest upper
  end. Runs are too few for an interval over trainings, and none is claimed.
- Sets and orders of demonstrations have Student's 95 % interval of the mean of seeds, which speaks of other
  demonstrations for the same queries. A single one has its own interval, which speaks of other queries. Tables hold
  the interval as it is; `over_seeds`, which draws and prints, cuts that of a share down to [0, 1].

Failed rows do not enter a mean, and a mean of which a seed failed is not made at all, since one over the other seeds
would flatter: `unfailed` removes its rows, and summaries of language models hold a failed row instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from iclbench.core.metrics import metric
from iclbench.tables.runs import named

# Of intervals of means of demonstrations.
LEVEL = 0.95

Seed = Literal["run", "demo_seed", "order"]


def over_seeds(rows: pd.DataFrame, keys: Sequence[str], seed: Seed = "run") -> pd.DataFrame:
    """One row per key, in the order of the keys: means over seeds, as this module defines them.

    Args:
        rows: rows of `values`, or `costs` (which have no interval), none of them failed; one per key and seed.
        keys: the columns that a mean has in common; missing values are a key too. With `run` among them every row
            stands for itself.
        seed: the column that tells seeds apart.

    Returns:
        Columns `keys`; value; low, high, the interval; the number of seeds (`runs`, `demo_seeds` or `orders`);
        n_episodes, as many as every seed has; lowest, highest and sd, the extremes and the standard deviation of single
        seeds; of runs also `run`, their names (`runs.named`).
    """
    keys = list(keys)
    groups = rows.groupby(keys, as_index=False, dropna=False)
    number = groups.ngroup()
    how = {"low": "min", "high": "max", "n_episodes": "min"}
    ends = [end for end in how if end in rows and end not in keys]
    if number.is_unique:  # nothing to average, which is most of what is asked for
        sorted_rows = rows.iloc[number.argsort()].reset_index(drop=True)
        value, each = sorted_rows["value"], [[one] for one in sorted_rows[seed]]
        found = sorted_rows[[*keys, "value", *ends]].assign(lowest=value, highest=value, sd=np.nan)
    else:
        found = groups.agg(
            value=("value", "mean"),
            **{end: (end, how[end]) for end in ends},
            lowest=("value", "min"),
            highest=("value", "max"),
            sd=("value", "std"),
        )
        each = _seeds(number, rows[seed])
    found[f"{seed}s"] = [len(own) for own in each]
    if seed != "run":
        return _students(found, found[f"{seed}s"])
    return found if "run" in keys else found.assign(run=[named(own) for own in each])


def student(values: Float[np.ndarray, " seeds"]) -> dict[str, float]:
    """Columns value, low and high: the mean of at least two seeds and Student's interval of it."""
    mean = float(np.mean(values))
    reach = float(_reach(np.std(values, ddof=1, keepdims=True), np.array([float(len(values))]))[0])
    return {"value": mean, "low": mean - reach, "high": mean + reach}


def unfailed(rows: pd.DataFrame, failed: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The rows that have these columns in common with no failed row; missing values are in common, too."""
    if failed.empty:  # as nearly everywhere
        return rows.copy(deep=False)
    known = pd.MultiIndex.from_frame(failed[list(keys)].astype(object))
    return rows[~pd.MultiIndex.from_frame(rows[list(keys)].astype(object)).isin(known)]


def _students(means: pd.DataFrame, seeds: pd.Series) -> pd.DataFrame:
    """Means with Student's interval where there are several seeds; of shares cut down to [0, 1]."""
    reach = _reach(means["sd"].to_numpy(float, na_value=np.nan), seeds.clip(lower=2).to_numpy(float))
    shares = pd.Series([metric(str(name)).is_share for name in means["metric"]], index=means.index, dtype=bool)
    ends = {"low": means["value"] - reach, "high": means["value"] + reach}
    ends = {end: means[end].where(seeds <= 1, across) for end, across in ends.items()}
    return means.assign(**{end: values.where(~shares, values.clip(0, 1)) for end, values in ends.items()})


def _reach(sd: Float[np.ndarray, " means"], seeds: Float[np.ndarray, " means"]) -> Float[np.ndarray, " means"]:
    """Half the length of Student's interval of a mean."""
    from scipy.special import stdtrit  # `scipy.stats` takes most of a second to import

    return np.asarray(stdtrit(seeds - 1, (1 + LEVEL) / 2) * (sd / np.sqrt(seeds)))


def _seeds(number: pd.Series, seeds: pd.Series) -> list[list[Any]]:
    """The seeds of every group, sorted, where `number` tells the group of each row."""
    found: dict[int, list[Any]] = {}
    for group, seed in sorted(set(zip(number.tolist(), seeds.tolist(), strict=True))):
        found.setdefault(group, []).append(seed)
    return [found[group] for group in sorted(found)]
