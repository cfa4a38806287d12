"""Reader of tables of numbers in `.parquet` files."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from iclbench.core import limits
from iclbench.core.errors import DataError, error_text
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.families.tabular.columns import Column, check_names, list_names

log = logging.getLogger("iclbench")

# The name that pandas writes for a row index without a name. Other programs read it as a column name.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def read_parquet(path: Path) -> list[Column]:
    """Read the columns of a file except the row index of pandas.

    Raises:
        DataError: the file cannot be read as a table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Opening the file first separates the errors for missing files from the errors for files of other formats.
        with limits.open_file(path) as file, pq.ParquetFile(file) as table:
            schema, rows = table.schema_arrow, table.metadata.num_rows
            row_index = index_names(schema)
            fields = [field for field in schema if field.name not in row_index]
            check_names(path, [field.name for field in fields])
            numeric_names = [field.name for field in fields if _is_numeric(field.type, pa.types)]
            limits.check(
                8 * rows * max(1, len(numeric_names)), f"{path}: a table of {rows:,} rows and {len(fields):,} columns,"
            )
            # Columns of text are not read, since only their names are reported. Arrow's threads would call back into
            # the Python file, which can crash the interpreter.
            columns = table.read(numeric_names, use_threads=False)
            numbers = {name: _arrow_numbers(columns.column(name), pa.types) for name in numeric_names}
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise not_parquet(path, error) from None
    except OSError as error:
        if error.strerror is None:
            raise not_parquet(path, error) from None
        raise cannot_read(path, error, "pass the path of a table (.csv, .csv.gz or .parquet)") from None
    if not rows:
        raise DataError(f"{path} has no rows; add rows of numbers")
    if row_index:
        log.info(
            f"{path}: {list_names(sorted(row_index))} is a row index of pandas, not a column; use reset_index() to "
            "add it"
        )
    return [Column(field.name, numbers.get(field.name)) for field in fields]


def not_parquet(path: Path, error: Exception) -> DataError:
    """Return the error for a file that is not a parquet table."""
    message = f"{path} is not a parquet table ({as_one_line(error_text(error))}); write it again, or as .csv"
    return DataError(message, code="unreadable-file")


def index_names(schema: Any) -> set[str]:
    """Return the names of the columns that are a row index of pandas, according to the metadata or to their names."""
    names = {name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)}
    try:
        index_columns = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return names | ({name for name in index_columns if isinstance(name, str)} & set(schema.names))
    except (ValueError, KeyError, TypeError, RecursionError):  # written by another program or damaged
        return names


def _is_numeric(kind: Any, types: Any) -> bool:
    is_plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return is_plain or types.is_decimal(kind) or types.is_null(kind)


def _arrow_numbers(column: Any, types: Any) -> Float[np.ndarray, " rows"]:
    if types.is_boolean(column.type):
        column = column.cast("uint8")
    return np.array(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)
