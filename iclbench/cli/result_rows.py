"""How rows of result tables are written on a terminal, and what is said below a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.analysis.scores import yes_or_no
from iclbench.cli.terminal import out
from iclbench.core.formats import fixed
from iclbench.tables.runs import tuned


def print_shipped(results: Path, values: pd.DataFrame) -> None:
    """Which contestants were not computed here, but taken from packed results."""
    taken: dict[str, list[str]] = {}
    cells = values.loc[values["kind"].ne("backbone"), ["prompt_set", "run"]].drop_duplicates()
    for prompt_set, run in cells.itertuples(index=False):
        path = results / "tables" / str(prompt_set) / f"{run}.values.parquet"
        if source := tables.metadata(path).get("from"):
            taken.setdefault(source, []).append(str(run))
    for source, runs in taken.items():
        names = ", ".join(dict.fromkeys(runs))
        out.print(f"from the {source} results, not computed here (--fresh does): {names}", soft_wrap=True)


def print_failed(values: pd.DataFrame) -> None:
    """One line for every cell without a value, or with rows that have none."""
    without = values[values["status"] != "ok"].drop_duplicates(["run", "status", "reason"])
    for _, row in without.iterrows():
        out.print(f"{row['status']}: {row['run']}: {row['reason']}")


def with_tuned(
    values: pd.DataFrame, columns: list[str], rows: list[list[str]], runs: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """A table, a row for each of the runs, with a column that says which were trained at the learning rate chosen for
    them; unchanged where it is known of none, or all agree."""
    words = yes_or_no(tuned(values, "run")).dropna()
    if words.empty:
        return columns, rows
    return [*columns, "tuned"], [[*row, str(words.get(run, ""))] for row, run in zip(rows, runs, strict=True)]


def named(run: str, kind: str) -> str:
    """A contestant's name as it stands in a table: models bold, oracles said to be such."""
    return {"oracle": run + " (oracle)", "backbone": f"[bold]{run}[/bold]"}.get(kind, run)


def short(error: Any) -> str:
    """An error in three decimals; `failed` where it is missing. Below 0 there are likelihoods only."""
    if pd.isna(error):
        return "failed"
    return "<.0005" if 0 <= error < 5e-4 else fixed(error)


def interval(row: Any) -> str:
    """Value and half the width of its interval; a single episode has none."""
    half = (row["high"] - row["low"]) / 2
    return f"{row['value']:.3f}" + ("" if pd.isna(half) else f" ±{half:.3f}")
