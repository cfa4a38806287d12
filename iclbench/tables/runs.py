"""The runs that rows belong to: the one that was trained, and those that a mean is over."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from iclbench.tables.schema import COMPARING, keys

_SEPARATOR = "; "
# Another processor changes a value of the same weights by a smaller part of half its interval, or of itself.
_ROUNDING = 1e-2


def trained_runs(values: pd.DataFrame) -> pd.Series:
    """For every row of `values` the run that was trained: its run without the method that is applied to it.

    >>> rows = {"run": ["a+b", "a+b+deep-thinking"], "method": [None, "+deep-thinking"]}
    >>> trained_runs(pd.DataFrame(rows)).tolist()
    ['a+b', 'a+b']
    """
    methods = values["method"].fillna("")
    runs = [str(run).removesuffix(method) for run, method in zip(values["run"], methods, strict=True)]
    return pd.Series(runs, index=values.index, dtype="string")


def tuned(values: pd.DataFrame, by: str) -> pd.Series:
    """By run or contestant whether all its runs were trained at the learning rate chosen for it; without those of which
    it is not known."""
    return values.dropna(subset="tuned").groupby(by)["tuned"].all()


def trained_otherwise(packed: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """The packed rows of runs under whose names others were trained here: under other settings, or to other weights."""
    names = ["task", "preset", "run"]
    # What compares contestants is of all together, packed ones among them: it does not show a training.
    trained = own[own["variant"].notna() & ~own["metric"].isin(COMPARING)]
    of_packed = pd.MultiIndex.from_frame(packed[names])
    known, same = (pd.MultiIndex.from_frame(trained[columns]) for columns in (names, [*names, "variant"]))
    again = of_packed.isin(known) & packed["variant"].notna().to_numpy(bool)
    again &= ~pd.MultiIndex.from_frame(packed[[*names, "variant"]]).isin(same)
    return packed[again | of_packed.isin(_with_other_values(packed, trained, names))]


def _with_other_values(packed: pd.DataFrame, own: pd.DataFrame, names: list[str]) -> pd.MultiIndex:
    """The runs with a value that differs from the packed one by more than rounding, as other weights give it."""
    measured = ["value", "low", "high"]
    columns = [*keys("values"), "variant"]
    mine, theirs = (rows.loc[rows["value"].notna(), columns + measured] for rows in (own, packed))
    both = mine.merge(theirs, on=columns, suffixes=("", "_packed"))
    value, low, high, other = (both[name].to_numpy(float, na_value=np.nan) for name in (*measured, "value_packed"))
    small = _ROUNDING * np.fmax((high - low) / 2, 0)
    differs = np.abs(value - other) > np.fmax(small, _ROUNDING * np.abs(other))
    return pd.MultiIndex.from_frame(both.loc[differs, names])


def named(runs: Iterable[str]) -> str:
    """The column `run` of a mean: the names of its runs.

    >>> named(["gpt2-s1", "gpt2-s0", "gpt2-s0"]), runs_of("gpt2-s0; gpt2-s1")
    ('gpt2-s0; gpt2-s1', ['gpt2-s0', 'gpt2-s1'])
    """
    return _SEPARATOR.join(sorted(set(runs)))


def runs_of(name: str) -> list[str]:
    """The runs that `named` has joined."""
    return name.split(_SEPARATOR)
