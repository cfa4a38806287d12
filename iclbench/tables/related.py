"""Selection of rows by the number of related datasets in the prompt."""

from __future__ import annotations

import pandas as pd


def without_related(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of predictions without related datasets, including all rows of tasks and questions without related
    datasets.

    >>> without_related(pd.DataFrame({"n_related": pd.array([0, None, 3], dtype="Int32")})).index.tolist()
    [0, 1]
    """
    return rows[rows["n_related"].isna() | rows["n_related"].eq(0).fillna(False)]
