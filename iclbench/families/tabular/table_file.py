"""Reader of regression tables, in which all columns are numbers and one column is the target.

Formats are `.csv` and `.csv.gz` (`iclbench.families.tabular.csv_file`) and `.parquet` (`parquet_file`). Text, missing
or infinite values and a constant target are errors, and the messages name the columns. Missing values are not imputed,
and text is not encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.formats import as_one_line
from iclbench.families.tabular.columns import Column, check_names, list_names, table_stem
from iclbench.families.tabular.csv_file import SEPARATOR_HINT, read_csv
from iclbench.families.tabular.parquet_file import read_parquet

SUFFIXES = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """A regression table.

    Attributes:
        name: the name of the file without its suffix.
        x: features, `(rows, features)`, in the order of the file.
        y: the target, `(rows,)`.
        features: names of the columns of `x`; `column 1`, ... for files without a header.
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
        target: name of the target column or, if no name is a number, its number from 1 (default: the last column).
        header: whether the first line of a CSV file names the columns (default: inferred from its cells).

    Raises:
        DataError: the file is not a table of finite numbers with a target that varies.
        UsageError: `header` is given for a parquet file.
    """
    path = Path(path)
    columns = _columns(path, header)
    names = [column.name for column in columns]
    if len(names) < 2:
        raise DataError(f"{path}: expected a target and at least one feature, got one column; {SEPARATOR_HINT}")
    check_names(path, names)
    index = target_index(path, names, target)
    values = _finite_numbers(path, columns, index)
    y = values[index]
    if y.min() == y.max():
        raise DataError(
            f"{path}: the target '{as_one_line(names[index])}' is constant in all {len(y)} rows; choose another"
        )
    feature_indices = [i for i in range(len(names)) if i != index]
    x = np.stack([values[i] for i in feature_indices], axis=1)
    return Table(stem(path), x, y, tuple(names[i] for i in feature_indices), names[index])


def stem(path: Path) -> str:
    """Return the name of the file without `.csv`, `.csv.gz` or `.parquet`."""
    return next((name for suffix in SUFFIXES if (name := table_stem(path, suffix))), path.stem)


def _columns(path: Path, header: bool | None) -> list[Column]:
    if not any(table_stem(path, suffix) is not None for suffix in SUFFIXES):
        raise DataError(f"{path}: expected a table that ends in {', '.join(SUFFIXES)}", code="bad-syntax")
    if table_stem(path, ".parquet") is None:
        return read_csv(path, header)
    if header is not None:
        raise UsageError(
            f"--{'' if header else 'no-'}header is for .csv files, and {path} has column names; remove the option",
            code="conflict",
        )
    return read_parquet(path)


def target_index(path: Path, names: Sequence[str], target: str | None) -> int:
    """Return the index of a column, given its name or, if no name is a number, its number from 1 (default: the last
    column).

    Raises:
        DataError: no column has this name or number.
    """
    if target is None:
        return len(names) - 1
    if target in names:
        return names.index(target)
    numbers_allowed = not any(name.isdecimal() for name in names)
    is_number = target.isdecimal() and target.isascii() and len(target) < 10
    if numbers_allowed and is_number and 1 <= int(target) <= len(names):
        return int(target) - 1
    unknown = UnknownNameError("target", as_one_line(target), map(as_one_line, names))
    hint = f" (or a column number from 1 to {len(names)})" if numbers_allowed else ""
    if names[0] == "column 1":
        hint += "; pass --header if the first line names the columns"
    raise DataError(f"{path}: {unknown}{hint}", code=unknown.code)


def _finite_numbers(path: Path, columns: Sequence[Column], target: int) -> list[Float[np.ndarray, " rows"]]:
    """Return all columns as finite numbers.

    Raises:
        DataError: a column has text, missing values or infinite values. These are checked in this order, and the
            message lists all such columns.
    """
    text_columns = [column for column in columns if column.values is None]
    if columns[target] in text_columns:
        places, name = _first_text(columns[target]), as_one_line(columns[target].name)
        raise DataError(f"{path}: the target '{name}' has text{places}; choose another, or replace it with numbers")
    if text_columns:
        places = list_names([as_one_line(column.name) + _first_text(column) for column in text_columns])
        raise DataError(f"{path}: text in {places}; encode it as numbers or remove the columns")
    values = [column.numbers() for column in columns]
    missing = [np.isnan(v) for v in values]
    if any(cells.any() for cells in missing):
        places = _places(columns, missing)
        rows, total = len(values[0]), int(np.any(missing, axis=0).sum())
        raise DataError(
            f"{path}: missing values in {places}, {total} of {rows} rows; fill them in or remove these rows"
        )
    infinite = [np.isinf(v) for v in values]
    if any(cells.any() for cells in infinite):
        places = _places(columns, infinite)
        raise DataError(f"{path}: infinite values in {places}; replace them or remove these rows")
    return values


def _first_text(column: Column) -> str:
    """Return the position of the first text of a column, in brackets; an empty string if the position is not known."""
    return "" if column.text_row is None else f" ({column.location_of(column.text_row)})"


def _places(columns: Sequence[Column], wrong_cells: Sequence[np.ndarray]) -> str:
    """Return the columns with wrong cells, each with its name, the number of wrong cells and the first wrong cell."""
    return list_names(
        [
            f"{as_one_line(column.name)} ({int(is_wrong.sum())}: {column.location_of(int(is_wrong.argmax()))})"
            for column, is_wrong in zip(columns, wrong_cells, strict=True)
            if is_wrong.any()
        ]
    )
