"""Format result tables for a terminal, and print the lines below a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.analysis.scores import COLUMNS, displayed_columns
from iclbench.cli.terminal import out
from iclbench.core.formats import fixed


def print_packed_sources(results: Path, values: pd.DataFrame) -> None:
    """Print the names of the contestants whose rows come from packed results."""
    runs_of_source: dict[str, list[str]] = {}
    cells = values.loc[values["kind"].ne("backbone"), ["prompt_set", "run"]].drop_duplicates()
    for prompt_set, run in cells.itertuples(index=False):
        path = results / "tables" / str(prompt_set) / f"{run}.values.parquet"
        if source := tables.metadata(path).get("pack"):
            runs_of_source.setdefault(source, []).append(str(run))
    for source, runs in runs_of_source.items():
        names = ", ".join(dict.fromkeys(runs))
        out.print(
            f"from the {source} results, not computed here (use --fresh to compute them): {names}", soft_wrap=True
        )


def print_failures(values: pd.DataFrame) -> None:
    """Print a line for each failed or skipped contestant, with the reason."""
    is_failure = values["status"].ne("ok") & values["metric"].ne("score")  # `score_notes` reports undefined scores
    failures = values[is_failure].drop_duplicates(["run", "status", "reason"])
    for _, row in failures.iterrows():
        out.print(f"{row['status']}: {row['run']}: {row['reason']}")


def with_terminal_columns(
    columns: list[str], rows: list[list[str]], board: pd.DataFrame
) -> tuple[list[str], list[list[str]]]:
    """Add the columns of `analysis.scores` that are shown on a terminal, except columns without values.

    `board` is a leaderboard with the same rows in the same order.
    """
    board = displayed_columns(board)
    for name in (name for name, column in COLUMNS.items() if column.on_terminal and name in board):
        if board[name].notna().any():
            cells = ["" if pd.isna(value) else COLUMNS[name].show(value) for value in board[name]]
            columns = [*columns, COLUMNS[name].title]
            rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    return columns, rows


def styled_name(run: str, kind: str) -> str:
    """Return a contestant's name for a table: in bold for a model, with "(oracle)" for an oracle."""
    return {"oracle": run + " (oracle)", "backbone": f"[bold]{run}[/bold]"}.get(kind, run)


def short_score(score: Any) -> str:
    """Format a score with three decimals, or as "failed" if it is missing. Small positive scores become "<.0005", so
    that only an exact 0 is shown as "0"."""
    if pd.isna(score):
        return "failed"
    if score == 0:
        return "0"
    return "<.0005" if 0 < score < 5e-4 else fixed(score)


def value_with_half_width(row: Any, metric: str | None = None) -> str:
    """Format a value with the half-width of its interval, if it has one.

    Args:
        row: a row with the columns value, low and high.
        metric: use the columns of `analysis.scores.metric_columns` for this metric.
    """
    value, low, high = ("value", "low", "high") if metric is None else (metric, f"{metric}_low", f"{metric}_high")
    if pd.isna(row[low]) or pd.isna(row[high]):
        return f"{row[value]:.3f}"
    return f"{row[value]:.3f} ±{(row[high] - row[low]) / 2:.3f}"
