"""Runs in the table `values`: trained runs, the runs of a mean, and packed runs that local runs replace."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from iclbench.tables.schema import COMPARISON_METRICS, key_columns

_SEPARATOR = "; "
# The largest difference between values that two processors compute from the same weights, as a share of the value or of
# half the width of its interval.
_ROUNDING_TOLERANCE = 1e-2


def trained_runs(values: pd.DataFrame) -> pd.Series:
    """The trained run of every row of `values`: the column `run` without the method that was applied.

    >>> rows = {"run": ["a+b", "a+b+deep-thinking"], "method": [None, "+deep-thinking"]}
    >>> trained_runs(pd.DataFrame(rows)).tolist()
    ['a+b', 'a+b']
    """
    methods = values["method"].fillna("")
    runs = [str(run).removesuffix(method) for run, method in zip(values["run"], methods, strict=True)]
    return pd.Series(runs, index=values.index, dtype="string")


def are_tuned(values: pd.DataFrame, by: str) -> pd.Series:
    """Whether all runs of each name were trained at the learning rate that was tuned for their backbone.

    Args:
        values: rows of `values`.
        by: the column with the names, `run` or `contestant`, which becomes the index of the result. Names without a
            value in the column `tuned` are omitted.
    """
    return values.dropna(subset="tuned").groupby(by)["tuned"].all()


def replaced_rows(packed_rows: pd.DataFrame, unpacked_rows: pd.DataFrame) -> pd.DataFrame:
    """The packed rows of runs that are replaced by an unpacked run of the same name with different settings or
    weights."""
    run_columns = ["task", "preset", "run"]
    # Metrics that compare contestants depend on the other contestants, so their values do not show whether the weights
    # differ.
    trained_rows = unpacked_rows[unpacked_rows["variant"].notna() & ~unpacked_rows["metric"].isin(COMPARISON_METRICS)]
    packed_names = pd.MultiIndex.from_frame(packed_rows[run_columns])
    trained_names, trained_variants = (
        pd.MultiIndex.from_frame(trained_rows[columns]) for columns in (run_columns, [*run_columns, "variant"])
    )
    has_other_settings = packed_names.isin(trained_names) & packed_rows["variant"].notna().to_numpy(bool)
    has_other_settings &= ~pd.MultiIndex.from_frame(packed_rows[[*run_columns, "variant"]]).isin(trained_variants)
    return packed_rows[
        has_other_settings | packed_names.isin(_runs_with_other_values(packed_rows, trained_rows, run_columns))
    ]


def _runs_with_other_values(
    packed_rows: pd.DataFrame, trained_rows: pd.DataFrame, run_columns: list[str]
) -> pd.MultiIndex:
    """The runs with a value that differs from the packed value by more than rounding errors."""
    measures = ["value", "low", "high"]
    columns = [*key_columns("values"), "variant"]
    left, right = (rows.loc[rows["value"].notna(), columns + measures] for rows in (trained_rows, packed_rows))
    pairs = left.merge(right, on=columns, suffixes=("", "_packed"))
    value, low, high, packed_value = (
        pairs[name].to_numpy(float, na_value=np.nan) for name in (*measures, "value_packed")
    )
    tolerance = np.fmax(_ROUNDING_TOLERANCE * np.fmax((high - low) / 2, 0), _ROUNDING_TOLERANCE * np.abs(packed_value))
    return pd.MultiIndex.from_frame(pairs.loc[np.abs(value - packed_value) > tolerance, run_columns])


def joined_run_names(runs: Iterable[str]) -> str:
    """The column `run` of a mean: the names of its runs.

    >>> joined_run_names(["gpt2-s1", "gpt2-s0", "gpt2-s0"]), split_run_names("gpt2-s0; gpt2-s1")
    ('gpt2-s0; gpt2-s1', ['gpt2-s0', 'gpt2-s1'])
    """
    return _SEPARATOR.join(sorted(set(runs)))


def split_run_names(name: str) -> list[str]:
    """The names of the runs of a mean, from `joined_run_names`."""
    return name.split(_SEPARATOR)
