"""The columns of a table as a reader of files returns them, and the checks that every format shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from iclbench.core.errors import DataError
from iclbench.core.formats import in_a_line


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a file.

    Attributes:
        name: its name, may be empty.
        values: its numbers, NaN where a value is missing; None where it holds text.
        place: position and content of a row's cell, in words, by the row's index.
        text: index of the first row that holds text, where that is known.
    """

    name: str
    values: Float[np.ndarray, " rows"] | None
    place: Callable[[int], str] = lambda row: f"row {row + 1}"
    text: int | None = None

    def numbers(self) -> Float[np.ndarray, " rows"]:
        """Its numbers; it must have some."""
        assert self.values is not None
        return self.values


def table_stem(path: Path, suffix: str) -> str | None:
    """The name before `suffix`, None where the file has another one."""
    return path.name[: -len(suffix)] if path.name.lower().endswith(suffix) else None


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise `DataError` where a column has no name of its own."""
    duplicates = [name for name, count in Counter(names).items() if count > 1 and name]
    if duplicates:
        raise DataError(f"{path}: two columns have the same name: {listed(duplicates)}; rename one")
    for index, name in enumerate(names):
        # Pandas writes 'Unnamed: 0' when it has read a table with a row index and writes it again.
        if not name or name == f"Unnamed: {index}":
            raise DataError(
                f"{path}: column {index + 1} has no name; name it, or remove it if it is a row index (pandas: "
                "to_csv(index=False))"
            )


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names in a line, the first ones of many."""
    text = ", ".join(in_a_line(name, 160) for name in names[:most])
    return text + (f" and {len(names) - most} more" if len(names) > most else "")
