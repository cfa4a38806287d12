"""Parquet files of result tables: write them with a digest, check and read them, and list them in a results folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from iclbench.core import digests, limits
from iclbench.core.files import atomic
from iclbench.core.memory import RESULT_TABLE_REMEDY, memory_advice
from iclbench.tables.schema import (
    SCHEMA_VERSION,
    SCHEMAS,
    TableError,
    TableName,
    frame,
    union,
    validate,
    with_short_names,
)

log = logging.getLogger("iclbench")

# The subfolders of a results folder that commands write to. Its other subfolders contain packed tables.
COMMAND_FOLDERS = ("cells", "rates", "runs", "tables")
# Files with at most this number of rows have no compression, no dictionaries and no empty columns, so they are smaller
# and are read six times faster.
_MAX_PLAIN_ROWS = 64
_TYPES = {
    pa.string(): pd.StringDtype(),
    pa.large_string(): pd.StringDtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}
# Number of files that are joined at once to save memory: a table of one row takes many times the memory of its values.
_BATCH_FILES = 500


def write(table: TableName, data: pd.DataFrame | list[dict[str, object]], path: Path, metadata: dict[str, str]) -> None:
    """Validate rows and write them to a parquet file with a digest.

    The rows are written to a temporary file, which is then renamed, so that no reader sees an incomplete file. A file
    that already contains the same rows is not written, so that commands that add nothing work on read-only results.

    Raises:
        TableError: the rows do not fit the schema.
    """
    checked_rows = frame(table, data) if isinstance(data, list) else validate(table, data)
    if _is_equal_file(table, path, checked_rows, metadata):
        return
    arrow = pa.Table.from_pandas(checked_rows, preserve_index=False)
    entries = {
        f"iclbench.{key}": value for key, value in {"table": table, "schema": str(SCHEMA_VERSION), **metadata}.items()
    }
    is_small = arrow.num_rows <= _MAX_PLAIN_ROWS
    if is_small:
        empty = [name for name in arrow.column_names if arrow[name].null_count == arrow.num_rows]
        arrow = arrow.drop_columns([name for name in empty if SCHEMAS[table][name][1]])
    options = {"compression": "none" if is_small else "zstd", "use_dictionary": not is_small}
    sink = pa.BufferOutputStream()
    # Arrow's schema would repeat the schema and the metadata of the file, and would take most of the space in a small
    # file.
    with pq.ParquetWriter(sink, arrow.schema, store_schema=False, **options) as writer:
        writer.write_table(arrow)
        writer.add_key_value_metadata({**arrow.schema.metadata, **entries, digests.KEY: digests.BLANK})
    content = digests.with_digest(sink.getvalue().to_pybytes())
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def _is_equal_file(table: TableName, path: Path, checked_rows: pd.DataFrame, entries: dict[str, str]) -> bool:
    """Whether a file contains these rows in this order and these metadata entries. The digest and the columns `version`
    and `commit` may differ."""
    if not path.is_file() or {k: v for k, v in metadata(path).items() if k not in ("table", "schema")} != entries:
        return False
    try:
        return _without_provenance(read(table, path)).equals(_without_provenance(checked_rows.reset_index(drop=True)))
    except TableError:
        return False


def _without_provenance(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the columns `version` and `commit`, which identify the code that computed them."""
    return rows.drop(columns=["version", "commit"], errors="ignore")


def read(table: TableName, path: Path) -> pd.DataFrame:
    """Read and validate one parquet file. Raise `TableError` if it is incomplete, damaged, or of another table."""
    return _validated_file(table, path, _load(table, path))


def read_columns(table: TableName, path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read the given columns of one file, with the types of the schema but without validation, which is faster than
    `read`."""
    rows = _frame(_load(table, path, columns)).reindex(columns=list(columns))
    return rows.astype({name: SCHEMAS[table][name][0] for name in columns})


def _load(table: TableName, path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the given columns of one file (default: all columns) without validation."""
    try:
        # Opening each file once and without threads halves the time for thousands of small files.
        with memory_advice(RESULT_TABLE_REMEDY), _open_checked(path) as file:
            entries = _iclbench_entries(file.metadata.metadata)
            if entries.get("table") != table:
                raise TableError(f"{path} is not an iclbench '{table}' table", code="unreadable-file")
            if entries.get("schema") != str(SCHEMA_VERSION):
                raise TableError(
                    f"{path} has table schema {entries.get('schema')}, but this iclbench reads schema "
                    f"{SCHEMA_VERSION}; delete it and rerun the command that wrote it, or install the version of "
                    "iclbench that wrote it",
                    code="not-supported",
                )
            limits.check(8 * file.metadata.num_rows * file.metadata.num_columns, f"{path}: a table of")
            return file.read(columns, use_threads=False)
    except limits.TooLargeError as error:
        raise TableError(str(error), code=error.code) from error
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _unreadable(path, error) from error


def _open_checked(path: Path) -> pq.ParquetFile:
    """Open a parquet file whose bytes match its digest.

    Raises:
        DamagedError: the bytes do not match the digest, or the file has no digest.
    """
    with memory_advice(RESULT_TABLE_REMEDY):
        content = path.read_bytes()
        digests.check(content)
        return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)


def _frame(arrow_table: pa.Table) -> pd.DataFrame:
    """The rows as a frame with the nullable types of pandas. The metadata of joined files are ignored, because they
    come from the first file, which may lack columns."""
    return arrow_table.to_pandas(types_mapper=_TYPES.get)


def _validated_file(table: TableName, path: Path, arrow_table: pa.Table) -> pd.DataFrame:
    try:
        return validate(table, _frame(arrow_table))
    except (TableError, pa.ArrowException, ValueError, KeyError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> TableError:
    reason = (str(error).splitlines() or [""])[0]
    return TableError(
        f"{path} cannot be read as an iclbench table; delete it and rerun the command that wrote it ({reason})",
        code="unreadable-file",
    )


def metadata(path: Path) -> dict[str, str]:
    """The metadata that iclbench wrote to the file of a table; empty if the file does not exist or cannot be read."""
    try:
        return _metadata(path)
    except (pa.ArrowException, OSError):
        return {}


def is_intact(path: Path) -> bool:
    """Whether a parquet file exists and matches its digest. The check is fast enough for thousands of files."""
    try:
        _open_checked(path).close()
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def _metadata(path: Path) -> dict[str, str]:
    return _iclbench_entries(pq.read_schema(path).metadata)


def _iclbench_entries(raw: dict[bytes, bytes] | None) -> dict[str, str]:
    """The entries of a file's metadata that iclbench wrote, without the digest."""
    entries = {k.decode(): v.decode() for k, v in (raw or {}).items() if k.startswith(b"iclbench.")}
    return {key.removeprefix("iclbench."): value for key, value in entries.items() if key != digests.KEY}


def read_all(
    table: TableName, results: Path, errors: list[TableError] | None = None, packed: bool | None = None
) -> pd.DataFrame:
    """Read all rows of one table in a results folder and its subfolders. Of rows with the same keys, the first one is
    used.

    Args:
        table: name of the table.
        results: the results folder.
        errors: a list to which the errors of unreadable files are added. Each of these files causes a warning.
        packed: True to read only packed files, with names cut as in `with_short_names`; False to read only other files
            (default: all files).
    """

    def skip(error: TableError) -> None:
        log.warning("skipped: %s", error)
        if errors is not None:
            errors.append(error)

    paths: list[Path] = []  # readable files
    counts: list[int] = []  # their numbers of rows
    joined_tables: list[pa.Table] = []
    batch: list[pa.Table] = []
    for path in files(table, results):
        if packed is not None and packed != is_packed(path, results):
            continue
        try:
            batch.append(_load(table, path))
        except TableError as error:
            skip(error)
            continue
        paths.append(path)
        counts.append(batch[-1].num_rows)
        if len(batch) == _BATCH_FILES:
            joined_tables, batch = joined_tables + _joined_tables(batch), []
    try:
        rows = _validated_rows(table, [*joined_tables, *batch], counts)
    except (TableError, pa.ArrowException, ValueError, KeyError):
        frames = []  # read the files one by one, since at least one is not valid
        for path in paths:
            try:
                frames.append(read(table, path))
            except TableError as error:
                skip(error)
        rows = union(table, frames)
    return with_short_names(rows) if packed else rows


def _joined_tables(batch: list[pa.Table]) -> list[pa.Table]:
    """Join the tables into one table, which takes less memory. Tables whose columns differ in type are returned
    unchanged."""
    try:
        return [pa.concat_tables(batch, promote_options="permissive").combine_chunks()]
    except pa.ArrowException:
        return batch


def _validated_rows(table: TableName, tables: list[pa.Table], counts: list[int]) -> pd.DataFrame:
    """The validated rows of all files. Of rows with the same keys, the first one is used. Validating all files at once
    is many times faster than validating each file.

    Args:
        table: name of the table.
        tables: the rows.
        counts: the number of rows of each file. Rows of one file must have different keys.
    """
    if not tables:
        return frame(table, [])
    rows = _frame(pa.concat_tables(tables, promote_options="permissive"))
    return validate(table, rows, np.repeat(np.arange(len(counts)), counts))


def files(table: TableName, results: Path) -> Iterator[Path]:
    """The parquet files of one table in a results folder and its subfolders, in a fixed order. Packed files are last,
    so that unpacked rows replace packed rows with the same keys. A folder with the name of such a file is included,
    because reading it reports the error."""
    ending = f"{table}.parquet"
    paths = [
        Path(folder, name)
        for folder, folders, names in os.walk(results)
        for name in (*folders, *names)
        if name.endswith(ending) and not name.startswith(".")
    ]
    yield from sorted(paths, key=lambda path: (is_packed(path, results), path.parts))


def read_packed(table: TableName, results: Path, task: str, preset: str) -> pd.DataFrame:
    """Read the packed rows of one table for a task at a preset, with names cut as in `with_short_names`. Of rows with
    the same keys, the first one is used.

    Raises:
        TableError: a file cannot be read. A comparison that lacks the contestants of this file would be wrong.
    """
    paths = sorted(results.glob(f"*/{packed_file_name(table, task, preset)}"))
    return with_short_names(union(table, [read(table, path) for path in paths]))


def packed_file_name(table: TableName, task: str, preset: str) -> str:
    """The name of the file with the packed rows of a task at a preset."""
    return f"{task}-{preset}.{table}.parquet"


def is_packed(path: Path, results: Path) -> bool:
    """Whether a file is outside the folders that commands write to (`COMMAND_FOLDERS`)."""
    return path.parts[len(results.parts)] not in COMMAND_FOLDERS
