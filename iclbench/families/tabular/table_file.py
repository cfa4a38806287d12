"""Reading one regression table from a file: numbers in columns, one column the target.

`.csv` and `.csv.gz` (UTF-8, separated by commas, with or without a header) and `.parquet`. Whatever cannot be used as
it stands (text, missing or infinite values, a constant target) is an error of one line that names the columns and says
what to do; nothing is dropped, filled or encoded silently.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from iclbench.core import limits
from iclbench.core.errors import DataError, UnknownNameError
from iclbench.families.tabular.numerals import meant_as_number, number

# Bytes that a field of text takes beside its characters, and a row beside its fields, about.
_FIELD = 64
SUFFIXES = (".csv", ".csv.gz", ".parquet")
# Cells that stand for "no value"; written in lower case here.
_MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}

Column: TypeAlias = Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Table:
    """A regression table.

    Attributes:
        name: the file's name without its suffix.
        x: features, `(rows, features)`, as they stand in the file.
        y: the target, `(rows,)`.
        features: names of the columns of `x`; `column 1`, ... without a header.
        target: name of the target column.
    """

    name: str
    x: Float[np.ndarray, "rows features"]
    y: Column
    features: tuple[str, ...]
    target: str

    @property
    def rows(self) -> int:
        return len(self.y)


def read_table(path: Path | str, target: str | None = None) -> Table:
    """Read a table.

    Args:
        path: a `.csv`, `.csv.gz` or `.parquet` file.
        target: name of the target column, or its number counted from 1 where no column has that name; None: the last
            column.

    Raises:
        DataError: the file cannot be read as a table of finite numbers with a target that varies.
    """
    path = Path(path)
    names, columns = _read_parquet(path) if table_stem(path, ".parquet") else _read_csv(path)
    if len(names) < 2:
        raise DataError(f"{path}: one column, but a target needs at least one feature beside it; {_COMMAS}")
    _check_names(path, names)
    chosen = _target_index(path, names, target)
    values = _numbers(path, names, columns, chosen)
    y = values[chosen]
    if y.min() == y.max():
        raise DataError(f"{path}: the target '{names[chosen]}' is the same in all {len(y)} rows; choose another")
    rest = [i for i in range(len(names)) if i != chosen]
    x = np.stack([values[i] for i in rest], axis=1)
    return Table(stem(path), x, y, tuple(names[i] for i in rest), names[chosen])


def stem(path: Path) -> str:
    """The file's name without `.csv`, `.csv.gz` or `.parquet`."""
    return next((found for suffix in SUFFIXES if (found := table_stem(path, suffix))), path.stem)


def table_stem(path: Path, suffix: str) -> str | None:
    """The name before `suffix`, None where the file has another one."""
    return path.name[: -len(suffix)] if path.name.lower().endswith(suffix) else None


_COMMAS = "columns are separated by commas"


def _read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """Names and columns of text. Blank lines are skipped; every other line must have the same number of fields."""
    try:
        text = TextIOWrapper(BytesIO(_unpacked(path)), encoding="utf-8-sig", newline="")
        reader = csv.reader(limits.lines(text, str(path)), skipinitialspace=True)
        rows = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; save it as CSV in UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a complete gzip file ({_line(error)}); compress it again") from None
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or _line(error)}; name a table that ends in .csv, .csv.gz or .parquet"
        ) from None
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path} is not a CSV table: {_line(error)}") from None
    if not rows:
        raise DataError(f"{path} is empty; expected a table with a header or rows of numbers")
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            raise DataError(f"{path}, line {line}: {len(row)} fields where the first line has {width}; {_COMMAS}")
    lines = [[cell.strip() for cell in row] for _, row in rows]
    header = _has_header(lines)
    body = lines[1:] if header else lines
    if not body:
        raise DataError(f"{path} has a header and no rows; add rows of numbers")
    names = lines[0] if header else [f"column {i + 1}" for i in range(width)]
    return names, [list(column) for column in zip(*body, strict=True)]


def _unpacked(path: Path) -> bytes:
    """The text of a table, read until it would take more than the limit once it is parsed: most of the time that a
    packed file of gigabytes takes is that of parsing."""
    most, taken, parts = limits.max_bytes(), 0, []
    with _opened(path) as file:
        while part := file.read(limits.max_line() + 1):
            rows = max(part.count(b"\n"), part.count(b"\r"))
            if not rows and len(part) > limits.max_line():
                raise limits.beyond(f"{path}: a line", limits.max_line())
            taken += len(part) + _FIELD * (part.count(b",") + 2 * rows)
            if taken > most:
                raise limits.beyond(f"{path}: the table takes", most)
            parts.append(part)
    return b"".join(parts)


def _opened(path: Path) -> BufferedIOBase:
    if table_stem(path, ".csv.gz"):
        return gzip.GzipFile(path)
    if table_stem(path, ".csv"):
        return path.open("rb")
    raise DataError(f"{path}: expected a table, a file that ends in {', '.join(SUFFIXES)}")


def _has_header(lines: list[list[str]]) -> bool:
    """Whether the first line names the columns: nothing in it is meant as a number, or a word stands above a column
    whose next entry is a number."""
    first = [meant_as_number(cell) and cell.lower() not in _MISSING for cell in lines[0]]
    if not any(first):
        return True
    second = [_is_number(cell) for cell in lines[1]] if len(lines) > 1 else first
    words = [not meant and cell.lower() not in _MISSING for meant, cell in zip(first, lines[0], strict=True)]
    return any(word and below for word, below in zip(words, second, strict=True))


def _is_number(cell: str) -> bool:
    value = number(cell)
    return value is not None and not np.isnan(value)


def _read_parquet(path: Path) -> tuple[list[str], list[Column | None]]:
    """Names and columns; None for a column that does not hold numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # The path is opened here, so that a missing file and a file that is no parquet are told apart.
        with path.open("rb") as file, pq.ParquetFile(file) as table:
            fields, rows = list(table.schema_arrow), table.metadata.num_rows
            names = [_line(field.name) for field in fields]
            _check_names(path, names)
            numeric = [_is_numeric(field.type, pa.types) for field in fields]
            limits.check(
                8 * rows * max(1, sum(numeric)), f"{path}: a table of {rows:,} rows and {len(names):,} columns,"
            )
            # Text is not even read: it is told by the names of its columns.
            # By this thread alone: those of Arrow would call back into the file, which has brought an interpreter down.
            asked = [field.name for field, number in zip(fields, numeric, strict=True) if number]
            loaded = table.read(asked, use_threads=False)
            found = iter(loaded.columns)
            columns = [_arrow_numbers(next(found), pa.types) if number else None for number in numeric]
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a parquet table ({_line(error)}); write it anew, or as .csv") from None
    except OSError as error:
        if error.strerror is None:
            raise DataError(f"{path} is not a parquet table ({_line(error)}); write it anew, or as .csv") from None
        raise DataError(
            f"cannot read {path}: {error.strerror}; name a table that ends in .csv, .csv.gz or .parquet"
        ) from None
    if not rows:
        raise DataError(f"{path} has no rows")
    return names, columns


def _is_numeric(kind: Any, types: Any) -> bool:
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return plain or types.is_decimal(kind) or types.is_null(kind)


def _arrow_numbers(column: Any, types: Any) -> Column:
    if types.is_boolean(column.type):
        column = column.cast("uint8")
    return np.array(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)


def _check_names(path: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise DataError(f"{path}: two columns have the same name: {_listed(twice)}; rename one")
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} has no name; name it, or remove it if it is a row index")


def _target_index(path: Path, names: list[str], target: str | None) -> int:
    if target is None:
        return len(names) - 1
    if target in names:
        return names.index(target)
    if target.isdecimal() and target.isascii() and len(target) < 10 and 1 <= int(target) <= len(names):
        return int(target) - 1
    unknown = UnknownNameError("target", _line(target), names)
    raise DataError(f"{path}: {unknown} (or a column number from 1 to {len(names)})")


def _numbers(path: Path, names: list[str], columns: Sequence[list[str] | Column | None], target: int) -> list[Column]:
    """All columns as finite numbers; text first, then missing, then infinite values are reported, all columns at
    once."""
    found = [_parse(column) if isinstance(column, list) else column for column in columns]
    text = [name for name, values in zip(names, found, strict=True) if values is None]
    if names[target] in text:
        raise DataError(f"{path}: the target '{names[target]}' holds text; choose another, or write numbers there")
    if text:
        raise DataError(f"{path}: text in {_listed(text)}; encode it as numbers or remove the column(s)")
    values = [column for column in found if column is not None]
    rows = len(values[0])
    holes = {name: int(np.isnan(v).sum()) for name, v in zip(names, values, strict=True) if np.isnan(v).any()}
    if holes:
        where = _listed([f"{name} ({count})" for name, count in holes.items()])
        total = int(np.isnan(np.stack(values)).any(0).sum())
        raise DataError(f"{path}: missing values in {where}, {total} of {rows} rows; fill them in or remove these rows")
    infinite = [name for name, v in zip(names, values, strict=True) if np.isinf(v).any()]
    if infinite:
        raise DataError(f"{path}: infinite values in {_listed(infinite)}; replace them or remove these rows")
    return values


def _parse(cells: list[str]) -> Column | None:
    """Cells as numbers, NaN where missing; None when one of them is text."""
    values = [np.nan if cell.lower() in _MISSING else number(cell) for cell in cells]
    return None if None in values else np.array(values, dtype=np.float64)


def _listed(names: list[str], most: int = 6) -> str:
    shown = ", ".join(_line(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _line(text: object) -> str:
    """The first line, short, without control characters."""
    first = (str(text).splitlines() or [""])[0]
    clean = "".join(c if c.isprintable() else " " for c in first)
    return clean if len(clean) <= 160 else clean[:157] + "..."
