"""Rows of the question `targets`: those over all episodes, and by the number of related datasets."""

from __future__ import annotations

import pandas as pd


def overall(rows: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """The rows over all episodes, not those of a bin or a stratum; of one metric if it is named."""
    found = rows[rows["axis"].isna()]
    return found if metric is None else found[found["metric"] == metric]


def counts(rows: pd.DataFrame) -> list[int]:
    """The numbers of related datasets that somebody was asked with."""
    return sorted(int(n) for n in rows["n_related"].dropna().unique())


def main_counts(rows: pd.DataFrame) -> list[int]:
    """None, one and the most: where the difference lies."""
    found = counts(rows)
    return sorted({n for n in found if n <= 1} | set(found[-1:]))


def levelled(rows: pd.DataFrame, asked: list[int]) -> pd.DataFrame:
    """The rows with those who ignore related datasets repeated at every number of them (column `level`), so that they
    stand beside those who use them; `note` goes behind their names."""
    most = rows.groupby("run")["n_related"].transform("max")
    alone = rows[(most == 0) & (rows["kind"] != "published")]
    copies = [alone.assign(n_related=n, level=True, note=" (without related datasets)") for n in asked if n > 0]
    return pd.concat([rows.assign(level=False, note=""), *copies], ignore_index=True)


def shifts(rows: pd.DataFrame) -> list[str]:
    """The training distribution first, then the shifts by name."""
    return sorted((str(shift) for shift in rows["shift"].unique()), key=lambda shift: (shift != "none", shift))
