"""Reader of users' tables into data frames: `.csv`, `.csv.gz`, `.parquet` and `.arff`.

Numbers, truth values, dates, text and missing values do not change; `iclbench.families.tabular.encoder` converts them
to numbers. Only a row index of pandas and columns of lists or records are removed.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iclbench.core import limits
from iclbench.core.errors import DataError, UsageError
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.families.tabular.arff_file import read_arff
from iclbench.families.tabular.column_kinds import MIN_SHARE
from iclbench.families.tabular.columns import list_names, table_stem
from iclbench.families.tabular.csv_file import LABEL_WORDS, MISSING, TRUTH_VALUES, read_text_columns
from iclbench.families.tabular.numerals import DECIMAL_MARKS, marked_numeral, number
from iclbench.families.tabular.parquet_file import index_names, not_parquet
from iclbench.families.tabular.table_file import target_index

log = logging.getLogger("iclbench")

FRAME_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".arff")
# The name that pandas gives to a column without a name when it reads a CSV file.
_UNNAMED = re.compile(r"Unnamed: \d+")
# Integers beyond this value are not exact in float64.
_MAX_INTEGER = 2**53
# Cells that are text because a conversion to numbers would change them: those with leading zeros, and integers of more
# than 15 digits.
_CODE = re.compile(r"(?:^|\n)[+-]?(?:0\d|\d{16,}(?:\n|$))")
_TARGET_NAMES = ("target", "class")
# Key in the attributes of a frame: the decimal mark of its file, by separator of columns.
_MARKS = "decimal marks"
# Number of different cells of a column that determine its decimal mark.
_MARK_SAMPLE = 1000


def read_frame(path: Path | str, header: bool | None = None, like: pd.DataFrame | None = None) -> pd.DataFrame:
    """Read a table.

    Args:
        path: a `.csv`, `.csv.gz`, `.parquet` or `.arff` file. Columns of a CSV file are separated by commas, semicolons
            or tabs.
        header: whether the first line of a CSV file names the columns (default: inferred from its cells).
        like: a table with the same columns. The first line of a CSV file is a header if it contains all names of this
            table, columns that are text in this table are read as text, and a file with the same separator of columns
            (or a single column) has the same decimal mark, unless its cells have another one.

    Returns:
        A data frame with columns of numbers, truth values, dates (parquet) and text. The names of columns are text.
        Dates in text files, and numbers with separators of thousands or leading zeros, are text. Numbers in a file with
        decimal commas have decimal points in the frame.

    Raises:
        DataError: the file cannot be read, has no rows, or two columns have the same name.
        UsageError: `header` is given for a file format that contains column names.
    """
    dtypes = {} if like is None else dict(like.dtypes)
    text_names = [name for name, dtype in dtypes.items() if dtype.kind == "O"]
    return _read(Path(path), header, dtypes, text_names, {} if like is None else like.attrs.get(_MARKS, {}))[0]


def read_labelled_frame(
    path: Path | str, header: bool | None = None, target: str | None = None
) -> tuple[pd.DataFrame, pd.Series]:
    """Read a table, and split it into inputs and target. In a target with text, words such as NA are text.

    Args:
        path: the file, as in `read_frame`.
        header: whether the first line names the columns, as in `read_frame`.
        target: name of the target or, if no name is a number, its number from 1 (default: the column `target` or
            `class`, in upper or lower case; without such a column, the last one).

    Raises:
        DataError: the file cannot be read as a table, has a single column, or lacks the target.
    """
    path = Path(path)
    is_name = target is not None and not target.isdecimal()
    frame, texts = _read(path, header, [str(target)] if is_name else ())
    names = list(frame.columns)
    if len(names) < 2:
        raise DataError(
            f"{path}: expected a target and at least one other column, got one column; in a CSV file, columns are "
            "separated by commas, semicolons or tabs"
        )
    if target is None:
        by_lower_case = {name.lower(): name for name in names}
        name = next((by_lower_case[key] for key in _TARGET_NAMES if key in by_lower_case), names[-1])
    else:
        name = names[target_index(path, names, target)]
    labels = frame[name]
    if labels.dtype == object and name in texts:
        labels = _text_only(texts[name], MISSING - LABEL_WORDS).rename(name)
    return frame.drop(columns=name), labels


def _read(
    path: Path,
    header: bool | None,
    names_in_header: Collection[str] = (),
    text_names: Collection[str] = (),
    marks: Mapping[str, str | None] | None = None,
) -> tuple[pd.DataFrame, Mapping[str, list[str]]]:
    """Return the table, and the cells of every column of a CSV file as text. A first line that contains all
    `names_in_header` is a header, and the columns `text_names` are read as text.
    `marks` is the decimal mark, by separator of columns, for files whose cells do not determine it."""
    if not any(table_stem(path, suffix) is not None for suffix in FRAME_SUFFIXES):
        raise DataError(
            f"{path}: expected a table that ends in {', '.join(FRAME_SUFFIXES)}; save it as .csv, with commas, "
            "semicolons or tabs",
            code="bad-syntax",
        )
    is_parquet, is_arff = (table_stem(path, suffix) is not None for suffix in (".parquet", ".arff"))
    if header is not None and (is_parquet or is_arff):
        raise UsageError(
            f"--{'' if header else 'no-'}header is for .csv files, and {path} has column names; remove the option",
            code="conflict",
        )
    if is_parquet:
        return _read_parquet_frame(path), {}
    if is_arff:
        names, cells, is_numeric = read_arff(path)
        columns = [_text_column(column, {"?", ""}) for column in cells]
        # Values of a nominal attribute are names even if they are numbers.
        columns = [
            column if numeric else _text_only(values, {"?", ""})
            for column, values, numeric in zip(columns, cells, is_numeric, strict=True)
        ]
        return _named_frame(path, names, columns), {}
    names, cells, separator = read_text_columns(path, header, names_in_header)
    marks = marks or {}
    default = marks.get(separator) if len(names) > 1 else next(iter(marks.values()), None)
    mark = _decimal_mark(path, names, cells, separator, default)
    if mark == ",":
        log.info("%s: numbers have decimal commas", path)
        cells = [_with_decimal_points(column) for column in cells]
    columns = [
        _text_only(column) if name in text_names else _text_column(column)
        for name, column in zip(names, cells, strict=True)
    ]
    frame = _named_frame(path, names, columns)
    frame.attrs[_MARKS] = {separator: mark}
    return frame, dict(zip(names, cells, strict=True))


def stem(path: Path) -> str:
    """Return the name of a table, which is the name of its file without the suffix."""
    suffix = next((suffix for suffix in FRAME_SUFFIXES if table_stem(path, suffix)), None)
    return path.stem if suffix is None else str(table_stem(path, suffix))


def _named_frame(path: Path, names: Sequence[str], columns: Sequence[pd.Series]) -> pd.DataFrame:
    """Return a data frame. A first column without a name is a row index of pandas and is removed."""
    first = 0
    if len(names) > 1 and (not names[0] or _UNNAMED.fullmatch(names[0])):
        log.info("%s: the first column has no name and is a row index; it is not used", path)
        first = 1
    # Files of spreadsheets may have columns with values but no name.
    names = [name or f"column {index + 1}" for index, name in enumerate(names)]
    _check_unique(path, names[first:])
    return pd.DataFrame(dict(zip(names[first:], columns[first:], strict=True)))


def _check_unique(path: Path, names: Sequence[str]) -> None:
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise DataError(
            f"{path}: two columns have the same name: {list_names(duplicates)}; rename one", code="duplicate"
        )


def _decimal_mark(
    path: Path, names: Sequence[str], columns: Sequence[list[str]], separator: str, default: str | None
) -> str | None:
    """Return the decimal mark of a file, or None if its columns have different marks.

    Many numbers fit both marks, such as 1.503 and 11,106. The mark is that of the columns of numbers that fit only one.
    Without such columns, it is `default`, or else the point, except if columns are separated by semicolons: there, it
    is the mark in a column in which every number has it, and the other one in a column in which some numbers have none,
    since 578 next to 1.503 indicates thousands. If this choice affects numbers, a message says how one of them is read.
    """
    marks: set[str] = set()
    undecided: list[tuple[str, str, bool]] = []
    for name, cells in zip(names, columns, strict=True):
        sample = [cell for cell in dict.fromkeys(cells) if cell.lower() not in MISSING][:_MARK_SAMPLE]
        example = next((cell for cell in sample if "," in cell or "." in cell), None)
        if example is None or _CODE.search("\n".join(sample)):
            continue
        fitting = [mark for mark in DECIMAL_MARKS if _share(sample, mark) >= MIN_SHARE]
        if len(fitting) == 1:
            marks.add(fitting[0])
        elif fitting:
            undecided.append((name, example, all("," in cell or "." in cell for cell in sample)))
    if len(marks) == 1:
        return marks.pop()
    if marks:
        return None
    is_comma_likely = separator == ";" and any(("," in example) == every for _, example, every in undecided)
    mark = default or ("," if is_comma_likely else ".")
    # Numbers that all have a point are fractions.
    unclear = [(name, example) for name, example, every in undecided if mark == "," or "," in example or not every]
    if unclear and default is None:
        name, example = unclear[0]
        log.info(
            "%s: '%s' in column '%s' is read as %s; write numbers with a decimal point and without separators of "
            "thousands to exclude another reading",
            *(path, as_one_line(example, 40), as_one_line(name, 80), marked_numeral(example, mark)),
        )
    return mark


def _share(cells: list[str], mark: str) -> float:
    """Return the share of cells that are numbers with this decimal mark."""
    return sum(marked_numeral(cell, mark) is not None for cell in cells) / len(cells)


def _with_decimal_points(cells: list[str]) -> list[str]:
    """Return a column of a file with decimal commas, with decimal points if it is a column of numbers."""
    present = [cell for cell in cells if cell.lower() not in MISSING]
    if not present or _CODE.search("\n".join(present)) or _share(present, ",") < MIN_SHARE:
        return cells
    return [marked_numeral(cell, ",") or cell for cell in cells]


def _text_column(cells: list[str], missing: set[str] = MISSING) -> pd.Series:
    """Convert a column of a text file to numbers, truth values or, if neither fits all cells, text. Missing cells
    remain missing."""
    joined = "\n".join(cells)
    if _CODE.search(joined):
        return _text_only(cells, missing)
    if joined.isascii() and "_" not in joined:  # `float` also reads underscores and digits of other scripts
        try:
            return _numbers([float(cell) for cell in cells])
        except ValueError:
            pass
    is_missing = [cell.lower() in missing for cell in cells]
    present = [cell for cell, gap in zip(cells, is_missing, strict=True) if not gap]
    if present and all(cell.lower() in TRUTH_VALUES for cell in present):
        truth = [None if gap else cell.lower() == "true" for cell, gap in zip(cells, is_missing, strict=True)]
        return pd.Series(truth, dtype="boolean" if any(is_missing) else "bool")
    values = [np.nan if gap else number(cell) for cell, gap in zip(cells, is_missing, strict=True)]
    if all(value is not None for value in values):
        return _numbers(values)
    return _text_only(cells, missing)


def _numbers(values: Sequence[float | None]) -> pd.Series:
    """Return numbers, as integers if all of them are integers, so that classes 0 and 1 have these names."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        is_integer = bool(np.all((np.abs(array) < _MAX_INTEGER) & (array == np.floor(array))))
    return pd.Series(array.astype(np.int64) if is_integer else array)


def _text_only(cells: list[str], missing: set[str] = MISSING) -> pd.Series:
    """Return a column of text, with None for missing cells."""
    return pd.Series([None if cell.lower() in missing else cell for cell in cells], dtype=object)


def _read_parquet_frame(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with limits.open_file(path) as file:
            schema = pq.read_schema(file)
            text_names = [field.name for field in schema if _is_text(field.type, pa.types)]
            file.seek(0)
            # Dictionaries contain each text only once, so that a small file cannot fill the memory.
            with pq.ParquetFile(file, read_dictionary=text_names) as table:
                row_index = index_names(schema)
                names = [field.name for field in schema if field.name not in row_index]
                _check_unique(path, names)
                rows = table.metadata.num_rows
                text_bytes = sum(
                    table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)
                )
                limits.check(
                    8 * rows * max(1, len(names)) + text_bytes,
                    f"{path}: a table of {rows:,} rows and {len(names):,} columns,",
                )
                nested_names = [
                    field.name for field in schema if pa.types.is_nested(field.type) and field.name in names
                ]
                names = [name for name in names if name not in nested_names]
                columns = table.read(names, use_threads=False)
                frame = pd.DataFrame({name: _arrow_column(columns.column(name), pa.types) for name in names})
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise not_parquet(path, error) from None
    except OSError as error:
        if error.strerror is None:
            raise not_parquet(path, error) from None
        raise cannot_read(path, error, f"pass the path of a table ({', '.join(FRAME_SUFFIXES)})") from None
    if not rows:
        raise DataError(f"{path} has no rows; add rows")
    if row_index:
        log.info("%s: %s is a row index of pandas; it is not used", path, list_names(sorted(row_index)))
    if nested_names:
        log.info("%s: lists and records are not used: %s", path, list_names(nested_names))
    return frame


def _is_text(kind: Any, types: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _arrow_column(column: Any, types: Any) -> Any:
    """Convert a column of Arrow to pandas values: numbers, truth values, dates or text."""
    import pyarrow as pa

    kind = column.type
    if types.is_decimal(kind):
        column = column.cast("float64")
    elif types.is_date(kind):
        column = column.cast("timestamp[s]")
    elif types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit))
    elif types.is_time(kind):
        column = column.cast("string")
    elif types.is_null(kind):
        column = column.cast("float64")
    values = column.to_pandas()
    if types.is_dictionary(kind):
        return values.array
    return pd.array(values, dtype="boolean") if types.is_boolean(kind) and column.null_count else values.to_numpy()
