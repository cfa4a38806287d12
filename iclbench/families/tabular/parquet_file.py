"""Tables of numbers in `.parquet` files."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from iclbench.core import limits
from iclbench.core.errors import DataError, said
from iclbench.core.formats import in_a_line
from iclbench.families.tabular.columns import Column, check_names, listed

log = logging.getLogger("iclbench")

# The name that pandas gives to a row index without one, which other programs read as the name of a column.
_INDEX = re.compile(r"__index_level_\d+__")


def read_parquet(path: Path) -> list[Column]:
    """The columns of a file, without those that are a row index of pandas.

    Raises:
        DataError: the file cannot be read as a table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # The path is opened here, so that a missing file and a file that is not parquet have different errors.
        with limits.opened(path) as file, pq.ParquetFile(file) as table:
            schema, rows = table.schema_arrow, table.metadata.num_rows
            index = _index_names(schema)
            fields = [field for field in schema if field.name not in index]
            check_names(path, [field.name for field in fields])
            numeric = [field.name for field in fields if _is_numeric(field.type, pa.types)]
            limits.check(
                8 * rows * max(1, len(numeric)), f"{path}: a table of {rows:,} rows and {len(fields):,} columns,"
            )
            # Text is not even read: the names of its columns say enough.
            # By this thread alone: those of Arrow would call back into the file, which has brought an interpreter down.
            loaded = table.read(numeric, use_threads=False)
            numbers = {name: _arrow_numbers(loaded.column(name), pa.types) for name in numeric}
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is not a parquet table ({_library_message(error)}); write it again, or as .csv"
        ) from None
    except OSError as error:
        if error.strerror is None:
            raise DataError(
                f"{path} is not a parquet table ({_library_message(error)}); write it again, or as .csv"
            ) from None
        raise DataError(
            f"cannot read {path}: {error.strerror}; name a table that ends in .csv, .csv.gz or .parquet"
        ) from None
    if not rows:
        raise DataError(f"{path} has no rows")
    if index:
        log.info(f"{path}: {listed(sorted(index))} is a row index of pandas, not a column (reset_index() makes it one)")
    return [Column(field.name, numbers.get(field.name)) for field in fields]


def _library_message(error: Exception) -> str:
    return in_a_line(said(error))


def _index_names(schema: Any) -> set[str]:
    """Names of the columns that are a row index of pandas: what the file's metadata says, and what pandas calls an
    index without a name."""
    names = {name for name in schema.names if _INDEX.fullmatch(name)}
    try:
        index_columns = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return names | ({name for name in index_columns if isinstance(name, str)} & set(schema.names))
    except (ValueError, KeyError, TypeError, RecursionError):  # written by another program, or damaged
        return names


def _is_numeric(kind: Any, types: Any) -> bool:
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return plain or types.is_decimal(kind) or types.is_null(kind)


def _arrow_numbers(column: Any, types: Any) -> Float[np.ndarray, " rows"]:
    if types.is_boolean(column.type):
        column = column.cast("uint8")
    return np.array(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)
