"""How rows of result tables are written on a terminal, and what is said below a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.cli.terminal import out
from iclbench.config.untuned import Trained, untuned
from iclbench.core.formats import fixed


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


def print_untuned(results: Path, values: pd.DataFrame) -> None:
    """Runs that were not trained at a learning rate chosen for them, among others that were."""
    names: list[str] = []
    for (preset, task), rows in values[values["kind"].eq("backbone")].groupby(["preset", "task"]):
        runs = rows[["run", "contestant", "model", "card"]].drop_duplicates().itertuples(index=False)
        names += sorted(untuned(results, str(preset), str(task), [Trained(*map(str, each)) for each in runs]))
    if names:
        out.print(f"untuned, while others are not (iclbench tune): {', '.join(names)}")


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
