"""Readers of event sequences, one module per file format."""

from __future__ import annotations

from pathlib import Path

from iclbench.core.errors import DataError
from iclbench.families.events.event_data import EventData
from iclbench.families.events.readers import jodie, json_lines, meta_tpp

# The format of each suffix.
SUFFIXES = {".npz": "npz", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


def read_events(
    path: Path, format_name: str | None = None, marks: int | None = None, times: str | None = None
) -> EventData:
    """Read the sequences of a file.

    Args:
        path: the file.
        format_name: `npz`, `jsonl` or `csv` (default: by suffix).
        marks: number of marks K (default: the number in the file).
        times: whether the times of an `.npz` file are `gaps` or `absolute` (default: gaps, with an error if they look
            absolute).

    Raises:
        DataError: the file cannot be read as sequences of events. The message contains the position of the error.
    """
    file_format = format_name or SUFFIXES.get(path.suffix.lower())
    if file_format is None:
        raise DataError(
            f"{path}: expected a file that ends in .npz, .jsonl or .csv; rename it, or pass its format: -o "
            "task.format=jsonl",
            code="bad-syntax",
        )
    if times is not None and file_format != "npz":
        raise DataError(
            f"{path}: task.times is for .npz files, and the times of .{file_format} files are absolute; remove "
            "task.times",
            code="conflict",
        )
    if file_format == "npz":
        return meta_tpp.read(path, marks, times)
    return (json_lines if file_format == "jsonl" else jodie).read(path, marks)
