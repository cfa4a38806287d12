"""Reader of `.csv` and `.csv.gz` tables in UTF-8, separated by commas, with or without a header.

Arrow parses files that contain only numbers and truth values. Python's `csv` module parses all other files, and files
that Arrow rejects, cell by cell. This accepts more spellings, and error messages contain the positions of cells. A test
compares both parsers.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import numpy as np

from iclbench.core import limits
from iclbench.core.errors import DataError, error_text
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.core.limits import TooLargeError
from iclbench.families.tabular.columns import Column, table_stem
from iclbench.families.tabular.numerals import number, resembles_number

SEPARATOR_HINT = "columns are separated by commas"
SEPARATORS = ";\t,"
_SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
# Approximate overhead in bytes of a field in addition to its characters. A row has twice this overhead.
_FIELD_BYTES = 64
# Spellings of a missing value in pandas, Excel, R and Weka, in lower case.
MISSING = {
    *("", "na", "n/a", "<na>", "#na", "#n/a", "#n/a n/a", "nan", "-nan", "+nan", "null", "none", "?"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
}
# Spellings that may also be the label of a class, such as NA for North America.
LABEL_WORDS = {"na", "n/a", "null", "none"}
TRUTH_VALUES = {"true": 1.0, "false": 0.0}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The characters of tables that Arrow parses: characters of numbers, of truth values and of separators.
_ARROW_CHARACTERS = b'0123456789+-.eE,\r\n \t"trufalsTRUFALS'


def read_csv(path: Path, header: bool | None = None) -> list[Column]:
    """Read the columns of a file. Blank lines are skipped; all other lines must have the same number of fields.

    Args:
        path: the file.
        header: whether the first line names the columns (default: inferred from its cells).

    Raises:
        DataError: the file cannot be read, lines have different numbers of fields, or the first line may be either a
            header or a row.
    """
    data = _data(path)
    first_line, has_header, columns = _parse_with_arrow(data, header) or _parse_cells(path, data, header)
    if header is None and not has_header and _may_be_header(first_line, columns):
        raise _ambiguous_header(path, first_line)
    names = first_line if has_header else [f"column {i + 1}" for i in range(len(first_line))]
    return [replace(column, name=name) for name, column in zip(names, columns, strict=True)]


def read_text_columns(
    path: Path, header: bool | None = None, names: Collection[str] = ()
) -> tuple[list[str], list[list[str]], str]:
    """Read the names of the columns, their cells as text, and the separator of columns. A first line that contains all
    `names` is a header.

    Other arguments and errors are as in `read_csv`, but columns may also be separated by semicolons or tabs. The
    separator is the first of semicolon, tab and comma that gives all lines the same number of fields, which must be
    greater than 1: commas may be decimal marks. If none of them does, the separator is the most frequent one in the
    first line.
    """
    data = _data(path)
    separator, rows = _rows_of_any_separator(path, data)
    first_line = rows[0][1]
    if header is None and names and set(names) <= set(first_line):
        header = True
    has_header = _has_header([row for _, row in rows[:2]]) if header is None else header
    cells = [list(column) for column in zip(*(row for _, row in rows[has_header:]), strict=True)]
    if not cells:
        raise DataError(f"{path} has a header but no rows; add rows")
    # A line of numbers may be a header only if all numbers are integers, so most tables need not be parsed here.
    if header is None and not has_header and all(map(_is_integer, first_line)):
        lines = [line for line, _ in rows]
        if _may_be_header(first_line, [_column(column, lines) for column in cells]):
            raise _ambiguous_header(path, first_line)
    return (first_line if has_header else [f"column {i + 1}" for i in range(len(first_line))]), cells, separator


def _rows_of_any_separator(path: Path, data: bytes) -> tuple[str, list[tuple[int, list[str]]]]:
    """Return the separator, and the number and the cells of every line. If no separator gives a table of several
    columns, it is the one that is most frequent in the first line."""
    for separator in SEPARATORS:
        try:
            rows = _rows(path, data, separator)
        except TooLargeError:
            raise
        except DataError:
            continue
        if len(rows[0][1]) > 1:
            return separator, rows
    first_line = data.lstrip().split(b"\n", 1)[0].decode(errors="replace")
    separator = max(SEPARATORS[::-1], key=first_line.count)
    return separator, _rows(path, data, separator)


def _data(path: Path) -> bytes:
    """Return the unpacked content of a file; raise `DataError` if it cannot be read."""
    try:
        return _read_unpacked(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is not a complete gzip file ({error_text(error)}); compress it again", code="unreadable-file"
        ) from None
    except OSError as error:
        raise cannot_read(path, error, "pass the path of a table") from None
    except ValueError as error:  # a null byte in the path
        raise DataError(f"cannot read {path}: {error_text(error)}", code="missing-file") from None


def _ambiguous_header(path: Path, first_line: list[str]) -> DataError:
    return DataError(
        f"{path}: the first line '{as_one_line(','.join(first_line))}' may be a header or a row; pass --header or "
        "--no-header, or give the columns names that are not numbers",
        code="missing-value",
    )


def _read_unpacked(path: Path) -> bytes:
    """Return the unpacked content of a file. `TooLargeError` is raised as soon as the parsed table would exceed the
    limit, since parsing takes most of the time."""
    limit, size, chunks = limits.max_bytes(), 0, []
    with limits.open_file(path) as raw:
        file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if table_stem(path, ".csv.gz") else raw
        while chunk := file.read(limits.max_line() + 1):
            rows = max(chunk.count(b"\n"), chunk.count(b"\r"))
            if not rows and len(chunk) > limits.max_line():
                raise limits.too_large(f"{path}: a line", limits.max_line())
            fields = max(chunk.count(separator.encode()) for separator in SEPARATORS)
            size += len(chunk) + _FIELD_BYTES * (fields + 2 * rows)
            if size > limit:
                raise limits.too_large(f"{path}: the table", limit)
            chunks.append(chunk)
    return b"".join(chunks)


_ParsedTable: TypeAlias = tuple[list[str], bool, list[Column]]
"""The cells of the first line, whether it is a header, and the columns without names."""


def _parse_with_arrow(data: bytes, header: bool | None) -> _ParsedTable | None:
    """Parse a table of finite numbers and truth values; return None if it may contain other cells."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    data = data.removeprefix(_BYTE_ORDER_MARK)
    first_lines = data[: limits.max_line()].split(b"\n", 2)
    if len(first_lines) < 3 or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return None
    try:
        first_line, second_line = (
            [cell.strip() for cell in next(_reader([line.decode()]), [])] for line in first_lines[:2]
        )
    except (csv.Error, ValueError):
        return None
    if not first_line or len(first_line) != len(second_line) or first_lines[0].count(b'"') % 2:
        return None
    has_header = _has_header([first_line, second_line]) if header is None else header
    header_line = data[: len(first_lines[0]) + 1] if has_header else b""
    if data.translate(None, _ARROW_CHARACTERS) != header_line.translate(None, _ARROW_CHARACTERS):
        return None
    labels = [str(index) for index in range(len(first_line))]
    column_types = [
        pa.bool_() if cell.lower() in TRUTH_VALUES else pa.float64()
        for cell in (second_line if has_header else first_line)
    ]
    convert_options = arrow.ConvertOptions(
        column_types=dict(zip(labels, column_types, strict=True)),
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
    )
    read_options = arrow.ReadOptions(use_threads=False, column_names=labels)
    try:
        table = arrow.read_csv(
            pa.py_buffer(data).slice(len(header_line)), read_options, convert_options=convert_options
        )
    except (pa.ArrowException, ValueError):
        return None
    arrays = [c.cast("uint8") if pa.types.is_boolean(c.type) else c for c in table.columns]
    columns = [Column("", np.array(array, dtype=np.float64)) for array in arrays]
    is_finite = all(not array.null_count for array in arrays) and all(np.isfinite(c.numbers()).all() for c in columns)
    return (first_line, has_header, columns) if is_finite else None


def _parse_cells(path: Path, data: bytes, header: bool | None) -> _ParsedTable:
    """Parse any table: names, numbers, truth values, missing values and text, with the position of every cell."""
    rows = _rows(path, data, ",")
    first_line = rows[0][1]
    has_header = _has_header([row for _, row in rows[:2]]) if header is None else header
    if has_header:
        del rows[0]
    if not rows:
        raise DataError(f"{path} has a header but no rows; add rows of numbers")
    lines = [line for line, _ in rows]
    return (
        first_line,
        has_header,
        [_column(list(cells), lines) for cells in zip(*(row for _, row in rows), strict=True)],
    )


def _rows(path: Path, data: bytes, separator: str) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of every line that is not blank."""
    try:
        text = TextIOWrapper(BytesIO(data), encoding="utf-8-sig", newline="")
        reader = _reader(limits.lines(text, str(path)), separator)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; save it as CSV in UTF-8", code="bad-syntax") from None
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path} is not a CSV table: {error_text(error)}", code="bad-syntax") from None
    if not rows:
        raise DataError(f"{path} is empty; expected a table with a header or rows of numbers")
    first_line = rows[0][1]
    for line, row in rows:
        if len(row) != len(first_line):
            raise DataError(
                f"{path}, line {line}: {len(row)} fields, but the first line has {len(first_line)}; columns are "
                f"separated by {_SEPARATOR_NAMES[separator]}",
                code="bad-syntax",
            )
    return rows


def _reader(lines: Iterable[str], separator: str = ",") -> Any:
    return csv.reader(lines, delimiter=separator, skipinitialspace=True)


def _column(cells: list[str], lines: list[int]) -> Column:
    def location_of(row: int) -> str:
        return f"line {lines[row]}: '{as_one_line(cells[row], 40)}'"

    joined = "".join(cells)
    if joined.isascii() and "_" not in joined:  # `float` also reads underscores and digits of other scripts
        try:
            return Column("", np.array([float(cell) for cell in cells]), location_of)
        except ValueError:
            pass
    lower_case = [cell.lower() for cell in cells]
    truth_values = TRUTH_VALUES if all(cell in TRUTH_VALUES or cell in MISSING for cell in lower_case) else {}
    values = [np.nan if cell in MISSING else truth_values.get(cell, number(cell)) for cell in lower_case]
    text_row = next((row for row, value in enumerate(values) if value is None), None)
    return Column("", None if text_row is not None else np.array(values, dtype=np.float64), location_of, text_row)


def _has_header(lines: list[list[str]]) -> bool:
    """Return whether the first line is a header. This is the case if no cell looks like a number, if a word is above a
    number, or if the first cell is empty and column numbers follow (pandas writes such a header if a table with a row
    index has no column names)."""
    is_number = [resembles_number(cell) and cell.lower() not in MISSING for cell in lines[0]]
    if not any(is_number) or (not lines[0][0] and all(map(_is_integer, lines[0][1:]))):
        return True
    is_above_number = [_is_number(cell) for cell in lines[1]] if len(lines) > 1 else is_number
    is_word = [not numeric and cell.lower() not in MISSING for numeric, cell in zip(is_number, lines[0], strict=True)]
    return any(word and above for word, above in zip(is_word, is_above_number, strict=True))


def _may_be_header(cells: list[str], columns: list[Column]) -> bool:
    """Return whether a first line of numbers may be a header. Its cells must be different integers. In addition, they
    must count from 0 or 1, or a column must contain text or numbers that are not integers below its first cell."""
    if len(set(cells)) < len(cells) or not all(map(_is_integer, cells)):
        return False
    is_numbering = any(cells == [str(start + i) for i in range(len(cells))] for start in (0, 1))
    return is_numbering or any(c.values is None or (c.values[1:] != np.floor(c.values[1:])).any() for c in columns)


def _is_integer(cell: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,17}", cell) is not None


def _is_number(cell: str) -> bool:
    value = number(cell)
    return value is not None and not np.isnan(value)
