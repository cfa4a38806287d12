"""Selection of rows for the question `targets`, the scores at target points."""

from __future__ import annotations

import pandas as pd

from iclbench import tables


def over_all_episodes(rows: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """The rows of `metric` (default: all metrics) whose values are means over all episodes, not over a bin or a
    stratum."""
    rows = rows[rows["axis"].isna()]
    return rows if metric is None else rows[rows["metric"] == metric]


def related_counts(rows: pd.DataFrame) -> list[int]:
    """The numbers of related datasets in the rows, ascending."""
    return sorted(int(n) for n in rows["n_related"].dropna().unique())


def main_counts(rows: pd.DataFrame) -> list[int]:
    """The numbers of related datasets that leaderboards show: zero, one and the largest."""
    counts = related_counts(rows)
    return sorted({n for n in counts if n <= 1} | set(counts[-1:]))


def repeat_over_counts(rows: pd.DataFrame, counts: list[int]) -> pd.DataFrame:
    """Add a copy of the rows of contestants that ignore related datasets for each positive number of related datasets.

    The column `level` marks the copies, which are drawn as horizontal lines. `note` is a suffix for the names of their
    contestants.
    """
    max_counts = rows.groupby("run")["n_related"].transform("max")
    rows_without_related = rows[(max_counts == 0) & (rows["kind"] != "published")]
    note = " (without related datasets)"
    copies = [rows_without_related.assign(n_related=n, level=True, note=note) for n in counts if n > 0]
    return pd.concat([rows.assign(level=False, note=""), *copies], ignore_index=True)


def has_joint(rows: pd.DataFrame) -> bool:
    """Whether the joint likelihood of any contestant differs from its marginal likelihood."""
    keys = ["run", "n_related"] if "run" in rows else ["contestant", "n_related"]
    likelihoods = rows[rows["metric"].isin(tables.LIKELIHOODS)]
    values = likelihoods.pivot_table(values="value", index=keys, columns="metric").astype(float)
    if len(values.columns) < 2:
        return False
    return bool(((values.iloc[:, 0] - values.iloc[:, 1]).abs() > 1e-4).any())


def shifts(rows: pd.DataFrame) -> list[str]:
    """The shifts in the rows: the training distribution first, then the others by name."""
    return sorted((str(shift) for shift in rows["shift"].unique()), key=lambda shift: (shift != "none", shift))
