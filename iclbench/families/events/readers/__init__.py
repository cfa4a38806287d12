"""Files of event sequences, one module for each format."""

from __future__ import annotations

from pathlib import Path

from iclbench.core.errors import DataError
from iclbench.families.events.event_data import EventData
from iclbench.families.events.readers import jodie, json_lines, meta_tpp

# The format that a suffix stands for.
SUFFIXES = {".npz": "npz", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


def read_events(path: Path, form: str | None = None, marks: int | None = None, times: str | None = None) -> EventData:
    """Read the sequences of a file.

    Args:
        path: of the file.
        form: `npz`, `jsonl` or `csv`; None: what the suffix says.
        marks: number of marks K; None: as many as there are in the file.
        times: whether the times of an `.npz` are `gaps` or `absolute`; None: gaps, refused where they look absolute.

    Raises:
        DataError: the file cannot be read as sequences of events, in one line with the place.
    """
    suffix = form or SUFFIXES.get(path.suffix.lower())
    if suffix is None:
        raise DataError(f"{path}: expected a file that ends in .npz, .jsonl or .csv, or -o task.format=jsonl as well")
    if times is not None and suffix != "npz":
        raise DataError(f"{path}: task.times is for .npz files; those of .{suffix} files are absolute; leave it out")
    if suffix == "npz":
        return meta_tpp.read(path, marks, times)
    return (json_lines if suffix == "jsonl" else jodie).read(path, marks)
