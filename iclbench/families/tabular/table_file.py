"""Reading one regression table from a file: numbers in columns, one column the target.

`.csv` and `.csv.gz` (`iclbench.families.tabular.csv_file`) and `.parquet` (`parquet_file`). Text, missing or infinite
values and a constant target are errors of one line, which names the columns and says what to do; nothing is filled or
encoded silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.formats import in_a_line
from iclbench.families.tabular.columns import Column, check_names, listed, table_stem
from iclbench.families.tabular.csv_file import COMMAS, read_csv
from iclbench.families.tabular.parquet_file import read_parquet

SUFFIXES = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """A regression table.

    Attributes:
        name: the file's name without its suffix.
        x: features, `(rows, features)`, in the order of the file.
        y: the target, `(rows,)`.
        features: names of the columns of `x`; `column 1`, ... without a header.
        target: name of the target column.
    """

    name: str
    x: Float[np.ndarray, "rows features"]
    y: Float[np.ndarray, " rows"]
    features: tuple[str, ...]
    target: str

    @property
    def rows(self) -> int:
        return len(self.y)


def read_table(path: Path | str, target: str | None = None, header: bool | None = None) -> Table:
    """Read a table.

    Args:
        path: a `.csv`, `.csv.gz` or `.parquet` file.
        target: name of the target column or, where no name is a number, its number counted from 1; None: the last
            column.
        header: whether the first line of a CSV names the columns; None: decided by its cells.

    Raises:
        DataError: the file cannot be read as a table of finite numbers with a target that varies.
        UsageError: `header` for a parquet file.
    """
    path = Path(path)
    columns = _columns(path, header)
    names = [column.name for column in columns]
    if len(names) < 2:
        raise DataError(f"{path}: one column, but a target needs at least one feature; {COMMAS}")
    check_names(path, names)
    target_index = _target_index(path, names, target)
    values = _numbers(path, columns, target_index)
    y = values[target_index]
    if y.min() == y.max():
        raise DataError(
            f"{path}: the target '{in_a_line(names[target_index])}' is the same in all {len(y)} rows; choose another"
        )
    feature_indices = [i for i in range(len(names)) if i != target_index]
    x = np.stack([values[i] for i in feature_indices], axis=1)
    return Table(stem(path), x, y, tuple(names[i] for i in feature_indices), names[target_index])


def stem(path: Path) -> str:
    """The file's name without `.csv`, `.csv.gz` or `.parquet`."""
    return next((name for suffix in SUFFIXES if (name := table_stem(path, suffix))), path.stem)


def _columns(path: Path, header: bool | None) -> list[Column]:
    if not any(table_stem(path, suffix) is not None for suffix in SUFFIXES):
        raise DataError(f"{path}: expected a table, a file that ends in {', '.join(SUFFIXES)}")
    if table_stem(path, ".parquet") is None:
        return read_csv(path, header)
    if header is not None:
        raise UsageError(f"--{'' if header else 'no-'}header is for .csv files; {path} says its columns' names itself")
    return read_parquet(path)


def _target_index(path: Path, names: Sequence[str], target: str | None) -> int:
    if target is None:
        return len(names) - 1
    if target in names:
        return names.index(target)
    counts = not any(name.isdecimal() for name in names)
    digits = target.isdecimal() and target.isascii() and len(target) < 10
    if counts and digits and 1 <= int(target) <= len(names):
        return int(target) - 1
    unknown = UnknownNameError("target", in_a_line(target), map(in_a_line, names))
    raise DataError(f"{path}: {unknown}" + (f" (or a column number from 1 to {len(names)})" if counts else ""))


def _numbers(path: Path, columns: Sequence[Column], target: int) -> list[Float[np.ndarray, " rows"]]:
    """All columns as finite numbers; text first, then missing, then infinite values are reported, all columns at
    once."""
    text = [column for column in columns if column.values is None]
    if columns[target] in text:
        places, name = _first_text(columns[target]), in_a_line(columns[target].name)
        raise DataError(f"{path}: the target '{name}' holds text{places}; choose another, or write numbers there")
    if text:
        places = listed([in_a_line(column.name) + _first_text(column) for column in text])
        raise DataError(f"{path}: text in {places}; encode it as numbers or remove the column(s)")
    values = [column.numbers() for column in columns]
    missing = [np.isnan(v) for v in values]
    if any(holes.any() for holes in missing):
        places = _places(columns, missing)
        rows, total = len(values[0]), int(np.any(missing, axis=0).sum())
        raise DataError(
            f"{path}: missing values in {places}, {total} of {rows} rows; fill them in or remove these rows"
        )
    infinite = [np.isinf(v) for v in values]
    if any(holes.any() for holes in infinite):
        places = _places(columns, infinite)
        raise DataError(f"{path}: infinite values in {places}; replace them or remove these rows")
    return values


def _first_text(column: Column) -> str:
    """Position of a column's first text, in brackets; empty where it is not known."""
    return "" if column.text is None else f" ({column.place(column.text)})"


def _places(columns: Sequence[Column], wrong: Sequence[np.ndarray]) -> str:
    """The columns with wrong cells: how many, and the first one."""
    return listed(
        [
            f"{in_a_line(column.name)} ({int(is_wrong.sum())}: {column.place(int(is_wrong.argmax()))})"
            for column, is_wrong in zip(columns, wrong, strict=True)
            if is_wrong.any()
        ]
    )
