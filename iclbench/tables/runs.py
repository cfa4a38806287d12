"""The runs that rows belong to: the one that was trained, and those that a mean is over."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from iclbench.tables.schema import COMPARING

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


def trained_otherwise(packed: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """The packed rows of runs under whose names others were trained here."""
    keys = ["task", "preset", "run"]
    # What compares contestants is of all together, packed ones among them: it is no sign of a training.
    trained = own[own["variant"].notna() & ~own["metric"].isin(COMPARING)]
    known, alike = (pd.MultiIndex.from_frame(trained[columns]) for columns in (keys, [*keys, "variant"]))
    again = pd.MultiIndex.from_frame(packed[keys]).isin(known) & packed["variant"].notna().to_numpy(bool)
    return packed[again & ~pd.MultiIndex.from_frame(packed[[*keys, "variant"]]).isin(alike)]


def named(runs: Iterable[str]) -> str:
    """The column `run` of a mean: the names of its runs.

    >>> named(["gpt2-s1", "gpt2-s0", "gpt2-s0"]), runs_of("gpt2-s0; gpt2-s1")
    ('gpt2-s0; gpt2-s1', ['gpt2-s0', 'gpt2-s1'])
    """
    return _SEPARATOR.join(sorted(set(runs)))


def runs_of(name: str) -> list[str]:
    """The runs that `named` has joined."""
    return name.split(_SEPARATOR)
