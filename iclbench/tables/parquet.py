"""The files of result tables: written whole with a digest, read only when they are what was written, found below a
results folder.
"""

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
from iclbench.core.memory import IN_TABLES, advised
from iclbench.tables.schema import SCHEMA, SCHEMAS, TableError, TableName, frame, union, validate

log = logging.getLogger("iclbench")

# The folders of a results folder that commands write to; packed tables lie beside them.
OWN = ("cells", "rates", "runs", "tables")
# Up to so many rows a file has neither compression nor dictionaries nor columns without a value: it is read six times
# as fast, and smaller.
_PLAIN_ROWS = 64
_TYPES = {
    pa.string(): pd.StringDtype(),
    pa.large_string(): pd.StringDtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}
# Files whose rows are joined at a time: a table of one row in memory takes many times the space of its values.
_JOINED = 500


def write(table: TableName, data: pd.DataFrame | list[dict[str, object]], path: Path, metadata: dict[str, str]) -> None:
    """Validate and write one parquet file with its digest: to a temporary file first, then renamed; no reader sees half
    of it. A file that says the same already stays as it is, so that commands with nothing to add work on results that
    may only be read."""
    checked = frame(table, data) if isinstance(data, list) else validate(table, data)
    if _says(table, path, checked, metadata):
        return
    arrow = pa.Table.from_pandas(checked, preserve_index=False)
    own = {f"iclbench.{key}": value for key, value in {"table": table, "schema": str(SCHEMA), **metadata}.items()}
    few = arrow.num_rows <= _PLAIN_ROWS
    if few:
        empty = [name for name in arrow.column_names if arrow[name].null_count == arrow.num_rows]
        arrow = arrow.drop_columns([name for name in empty if SCHEMAS[table][name][1]])
    how = {"compression": "none" if few else "zstd", "use_dictionary": not few}
    sink = pa.BufferOutputStream()
    # Arrow's own schema would repeat that of the file and its metadata, which is most of a small file.
    with pq.ParquetWriter(sink, arrow.schema, store_schema=False, **how) as writer:
        writer.write_table(arrow)
        writer.add_key_value_metadata({**arrow.schema.metadata, **own, digests.KEY: digests.BLANK})
    whole = digests.sealed(sink.getvalue().to_pybytes())
    with atomic(path) as temporary:
        temporary.write_bytes(whole)


def _says(table: TableName, path: Path, checked: pd.DataFrame, about: dict[str, str]) -> bool:
    """Whether a file holds these rows in this order and says this of them; its digest and the code that computed
    the rows may be others."""
    if not path.is_file() or {k: v for k, v in metadata(path).items() if k not in ("table", "schema")} != about:
        return False
    try:
        return _of_code(read(table, path)).equals(_of_code(checked.reset_index(drop=True)))
    except TableError:
        return False


def _of_code(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the columns that say which code computed them."""
    return rows.drop(columns=["version", "commit"], errors="ignore")


def read(table: TableName, path: Path) -> pd.DataFrame:
    """Read and validate one parquet file; raises `TableError` when it is cut short, damaged, foreign or another
    table."""
    return _checked(table, path, _load(table, path))


def read_columns(table: TableName, path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of one file, with their exact types and not validated; for many files, faster than `read`."""
    rows = _frame(_load(table, path, columns)).reindex(columns=list(columns))
    return rows.astype({name: SCHEMAS[table][name][0] for name in columns})


def _load(table: TableName, path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one file, not yet validated; None: all columns."""
    try:
        # Opened once, and by the plain reader: thousands of small files take half as long.
        with advised(IN_TABLES), _opened(path) as file:
            about = _own(file.metadata.metadata)
            if about.get("table") != table:
                raise TableError(f"{path} is not an iclbench '{table}' table")
            if about.get("schema") != str(SCHEMA):
                raise TableError(
                    f"{path} has table schema {about.get('schema')}, this iclbench reads schema {SCHEMA}; delete it "
                    "and run the command that wrote it again, or install the version of iclbench that wrote it"
                )
            limits.check(8 * file.metadata.num_rows * file.metadata.num_columns, f"{path}: a table of")
            return file.read(columns, use_threads=False)
    except limits.TooLargeError as error:
        raise TableError(str(error)) from error
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise TableError(_unreadable(path, error)) from error


def _opened(path: Path) -> pq.ParquetFile:
    """A parquet file whose bytes are those of its digest.

    Raises:
        DamagedError: they are not, or it has no digest.
    """
    with advised(IN_TABLES):
        whole = path.read_bytes()
        digests.check(whole)
        return pq.ParquetFile(pa.BufferReader(whole), pre_buffer=False)


def _frame(loaded: pa.Table) -> pd.DataFrame:
    """The rows, in the types of pandas that have a missing value: the metadata of joined files are those of the first,
    which may lack a column."""
    return loaded.to_pandas(types_mapper=_TYPES.get)


def _checked(table: TableName, path: Path, loaded: pa.Table) -> pd.DataFrame:
    try:
        return validate(table, _frame(loaded))
    except (TableError, pa.ArrowException, ValueError, KeyError) as error:
        raise TableError(_unreadable(path, error)) from error


def _unreadable(path: Path, error: Exception) -> str:
    why = (str(error).splitlines() or [""])[0]
    return f"{path} cannot be read as an iclbench table; delete it, and the command that wrote it does so again ({why})"


def metadata(path: Path) -> dict[str, str]:
    """The provenance inside a table's file; empty when there is no readable file."""
    try:
        return _metadata(path)
    except (pa.ArrowException, OSError):
        return {}


def is_intact(path: Path) -> bool:
    """Whether a parquet file is there, not cut short, and the one that was written: for thousands of files."""
    try:
        _opened(path).close()
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def _metadata(path: Path) -> dict[str, str]:
    return _own(pq.read_schema(path).metadata)


def _own(raw: dict[bytes, bytes] | None) -> dict[str, str]:
    """The entries of a file's metadata that iclbench wrote, without the digest."""
    entries = {k.decode(): v.decode() for k, v in (raw or {}).items() if k.startswith(b"iclbench.")}
    return {key.removeprefix("iclbench."): value for key, value in entries.items() if key != digests.KEY}


def read_all(
    table: TableName, results: Path, skipped: list[TableError] | None = None, packed: bool | None = None
) -> pd.DataFrame:
    """All rows of one table below a results folder; of rows that stand in two files, the first.

    A file that cannot be read is named in a warning, added to `skipped`, and left alone. `packed`: only files that are
    packed, or only those that are not.
    """

    def skip(error: TableError) -> None:
        log.warning("skipped: %s", error)
        if skipped is not None:
            skipped.append(error)

    paths: list[Path] = []  # of the files that can be read, and the rows of each
    counts: list[int] = []
    joined: list[pa.Table] = []
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
        if len(batch) == _JOINED:
            joined, batch = joined + _joined(batch), []
    try:
        return union(table, [_validated(table, [*joined, *batch], counts)])
    except (TableError, pa.ArrowException, ValueError, KeyError):
        frames = []  # file by file, to find those that do not fit
        for path in paths:
            try:
                frames.append(read(table, path))
            except TableError as error:
                skip(error)
        return union(table, frames)


def _joined(batch: list[pa.Table]) -> list[pa.Table]:
    """One table with the rows of all, in little memory; the tables themselves if their columns differ in type."""
    try:
        return [pa.concat_tables(batch, promote_options="permissive").combine_chunks()]
    except pa.ArrowException:
        return batch


def _validated(table: TableName, tables: list[pa.Table], counts: list[int]) -> pd.DataFrame:
    """All files validated at once, which is many times faster than one by one; no row may be in one file twice.

    Args:
        table: its name.
        tables: the rows.
        counts: how many of them are from each file.
    """
    if not tables:
        return frame(table, [])
    rows = _frame(pa.concat_tables(tables, promote_options="permissive"))
    return validate(table, rows, np.repeat(np.arange(len(counts)), counts))


def files(table: TableName, results: Path) -> Iterator[Path]:
    """The parquet files of one table below a results folder, in a fixed order: packed ones behind all others, so that
    of rows that stand in both the user's own come first."""
    ending = f"{table}.parquet"
    found = [
        Path(folder, name)
        for folder, _, names in os.walk(results)
        for name in names
        if name.endswith(ending) and not name.startswith(".")
    ]
    yield from sorted(found, key=lambda path: (is_packed(path, results), path.parts))


def packed(table: TableName, results: Path, task: str, preset: str) -> pd.DataFrame:
    """The packed rows of one table of a task at a preset; of rows that stand in two files, the first.

    Raises:
        TableError: a file cannot be read. Who compares contestants must not go on without some of them.
    """
    return union(table, [read(table, path) for path in sorted(results.glob(f"*/{packed_name(table, task, preset)}"))])


def packed_name(table: TableName, task: str, preset: str) -> str:
    """The file that packed rows of a task at a preset stand in."""
    return f"{task}-{preset}.{table}.parquet"


def is_packed(path: Path, results: Path) -> bool:
    """Whether a file lies beside the folders that commands write to."""
    return path.parts[len(results.parts)] not in OWN
