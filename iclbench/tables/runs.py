"""The runs that rows belong to: the one that was trained, and those that a mean is over."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

_SEPARATOR = "; "


def trained_runs(values: pd.DataFrame) -> pd.Series:
    """For every row of `values` the run that was trained: its run without the method that is applied to it.

    >>> rows = {"run": ["a+b", "a+b+deep-thinking"], "method": [None, "+deep-thinking"]}
    >>> trained_runs(pd.DataFrame(rows)).tolist()
    ['a+b', 'a+b']
    """
    methods = values["method"].fillna("")
    runs = [str(run).removesuffix(method) for run, method in zip(values["run"], methods, strict=True)]
    return pd.Series(runs, index=values.index, dtype="string")


def named(runs: Iterable[str]) -> str:
    """The column `run` of a mean: the names of its runs.

    >>> named(["gpt2-s1", "gpt2-s0", "gpt2-s0"]), runs_of("gpt2-s0; gpt2-s1")
    ('gpt2-s0; gpt2-s1', ['gpt2-s0', 'gpt2-s1'])
    """
    return _SEPARATOR.join(sorted(set(runs)))


def runs_of(name: str) -> list[str]:
    """The runs that `named` has joined."""
    return name.split(_SEPARATOR)
