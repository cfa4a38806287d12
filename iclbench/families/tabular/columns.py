"""The columns of a table, and checks that are common to all file formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from iclbench.core.errors import DataError
from iclbench.core.formats import as_one_line


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a file.

    Attributes:
        name: the name, which may be empty.
        values: the numbers, NaN for missing values; None if the column has text.
        location_of: a function that describes the position and content of a cell, given the index of its row.
        text_row: index of the first row with text, if it is known.
    """

    name: str
    values: Float[np.ndarray, " rows"] | None
    location_of: Callable[[int], str] = lambda row: f"row {row + 1}"
    text_row: int | None = None

    def numbers(self) -> Float[np.ndarray, " rows"]:
        """Return the values of a column without text."""
        assert self.values is not None
        return self.values


def table_stem(path: Path, suffix: str) -> str | None:
    """Return the name of the file before `suffix`, or None if the file has another suffix."""
    return path.name[: -len(suffix)] if path.name.lower().endswith(suffix) else None


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise `DataError` if a name is missing or used twice."""
    duplicates = [name for name, count in Counter(names).items() if count > 1 and name]
    if duplicates:
        raise DataError(
            f"{path}: two columns have the same name: {list_names(duplicates)}; rename one", code="duplicate"
        )
    for index, name in enumerate(names):
        # Pandas writes 'Unnamed: 0' if it reads and rewrites a table with a row index.
        if not name or name == f"Unnamed: {index}":
            raise DataError(
                f"{path}: column {index + 1} has no name; name it, or remove it if it is a row index (pandas: "
                "to_csv(index=False))"
            )


def list_names(names: Sequence[str], limit: int = 4) -> str:
    """Return the first `limit` names and the number of the other names, as one string."""
    text = ", ".join(as_one_line(name, 160) for name in names[:limit])
    return text + (f" and {len(names) - limit} more" if len(names) > limit else "")
