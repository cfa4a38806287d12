"""Means over seeds in result tables, figures and printed tables.

A seed repeats a measurement with other random numbers. There are three kinds of seeds:

- `run`: training runs of one contestant that differ only in the seed, on the same prompts. (Runs that differ in more
  than the seed belong to different contestants; see `analysis.comparable`.)
- `demo_seed`: sets of demonstrations for the same queries to a language model.
- `order`: orders of one set of demonstrations.

The value is the mean over seeds with equal weights, even if their numbers of episodes differ. The interval depends on
the kind of seed:

- For runs, it is the envelope of their intervals over episodes, from the lowest lower end to the highest upper end. The
  number of runs is usually too small for an interval over training runs.
- For sets and orders of demonstrations, it is Student's 95 % interval of the mean over seeds. It measures the effect of
  other demonstrations for the same queries. For a single set, it is the interval over queries. `means_over_seeds`,
  which figures and printed tables use, clips the interval of a share to [0, 1]; table files contain the interval
  without clipping.

If a seed failed, the mean is missing, because a mean over the other seeds would be too optimistic. `without_failed`
removes the rows of the other seeds. Summaries of language models have a failed row instead of a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from iclbench.core.metrics import metric
from iclbench.tables.runs import joined_run_names

# Confidence level of the intervals over demonstrations.
CONFIDENCE_LEVEL = 0.95

SeedKind = Literal["run", "demo_seed", "order"]


def means_over_seeds(rows: pd.DataFrame, keys: Sequence[str], seed: SeedKind = "run") -> pd.DataFrame:
    """Means over seeds, as defined in this module: one row per key, in the order of the keys.

    Args:
        rows: rows of `values` or `costs` without failed rows, one per key and seed. Rows of `costs` have no interval.
        keys: the columns to group by. Missing values form a group. If `run` is one of the keys, every group has one
            row.
        seed: the column of the seed.

    Returns:
        The columns `keys`; value; low and high (the interval); the number of seeds (`runs`, `demo_seeds` or `orders`);
        n_episodes (the smallest number of episodes of a seed); lowest, highest and sd (the extremes and the standard
        deviation over seeds); for runs also `run`, their names (`runs.joined_run_names`).
    """
    keys = list(keys)
    groups = rows.groupby(keys, as_index=False, dropna=False)
    group_numbers = groups.ngroup()
    aggregations = {"low": "min", "high": "max", "n_episodes": "min"}
    columns = [column for column in aggregations if column in rows and column not in keys]
    if group_numbers.is_unique:  # the most frequent case, which needs no means
        sorted_rows = rows.iloc[group_numbers.argsort()].reset_index(drop=True)
        value, group_seeds = sorted_rows["value"], [[value] for value in sorted_rows[seed]]
        means = sorted_rows[[*keys, "value", *columns]].assign(lowest=value, highest=value, sd=np.nan)
    else:
        means = groups.agg(
            value=("value", "mean"),
            **{column: (column, aggregations[column]) for column in columns},
            lowest=("value", "min"),
            highest=("value", "max"),
            sd=("value", "std"),
        )
        group_seeds = _seeds_of_groups(group_numbers, rows[seed])
    means[f"{seed}s"] = [len(seeds) for seeds in group_seeds]
    if seed != "run":
        return _with_student_intervals(means, means[f"{seed}s"])
    return means if "run" in keys else means.assign(run=[joined_run_names(runs) for runs in group_seeds])


def student_interval(values: Float[np.ndarray, " seeds"]) -> dict[str, float]:
    """The mean over at least two seeds (`value`), and the ends of its Student interval (`low` and `high`)."""
    mean = float(np.mean(values))
    half_width = float(_half_width(np.std(values, ddof=1, keepdims=True), np.array([float(len(values))]))[0])
    return {"value": mean, "low": mean - half_width, "high": mean + half_width}


def without_failed(rows: pd.DataFrame, failed: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Remove the rows whose keys occur in a failed row. Missing values count as equal."""
    if failed.empty:  # the most frequent case
        return rows.copy(deep=False)
    failed_keys = pd.MultiIndex.from_frame(failed[list(keys)].astype(object))
    return rows[~pd.MultiIndex.from_frame(rows[list(keys)].astype(object)).isin(failed_keys)]


def _with_student_intervals(means: pd.DataFrame, seeds: pd.Series) -> pd.DataFrame:
    """The means, with Student's interval if there are several seeds. Intervals of shares are clipped to [0, 1]."""
    half_widths = _half_width(means["sd"].to_numpy(float, na_value=np.nan), seeds.clip(lower=2).to_numpy(float))
    is_share = pd.Series([metric(str(name)).is_share for name in means["metric"]], index=means.index, dtype=bool)
    intervals = {"low": means["value"] - half_widths, "high": means["value"] + half_widths}
    intervals = {column: means[column].where(seeds <= 1, ends) for column, ends in intervals.items()}
    return means.assign(**{column: ends.where(~is_share, ends.clip(0, 1)) for column, ends in intervals.items()})


def _half_width(sd: Float[np.ndarray, " means"], seeds: Float[np.ndarray, " means"]) -> Float[np.ndarray, " means"]:
    """Half the width of Student's interval of a mean."""
    from scipy.special import stdtrit  # `scipy.stats` takes most of a second to import

    return np.asarray(stdtrit(seeds - 1, (1 + CONFIDENCE_LEVEL) / 2) * (sd / np.sqrt(seeds)))


def _seeds_of_groups(group_numbers: pd.Series, seeds: pd.Series) -> list[list[Any]]:
    """The sorted seeds of every group. `group_numbers` contains the group of every row."""
    seeds_by_group: dict[int, list[Any]] = {}
    for group, seed in sorted(set(zip(group_numbers.tolist(), seeds.tolist(), strict=True))):
        seeds_by_group.setdefault(group, []).append(seed)
    return [seeds_by_group[group] for group in sorted(seeds_by_group)]
