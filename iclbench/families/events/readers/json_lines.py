"""One sequence per line, as JSON: `{"times": [0.5, 1.25], "marks": [0, 2], "end": 3.0}`.

Times are absolute and count from the start of the observation, marks are 0-based. `marks` may be left out (of all
lines: there is one mark then), and so may `end`, the end of the observation. With `end` a sequence may have no events:
nothing happened in its window. Any other key is an error: it is nearly
always one of these in another spelling.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from iclbench.core.errors import DataError, UnknownNameError, shortened
from iclbench.core.json_text import parse_json
from iclbench.families.events.event_data import MOST_MARKS, EventData
from iclbench.families.events.readers.lines import check_size, decoded, numbered

_KEYS = ("times", "marks", "end")


def read(path: Path, marks: int | None) -> EventData:
    """The sequences of a file; `marks` is K, None: the largest mark and 1.

    Raises:
        DataError: see the module; with line and event, both counted from 1.
    """
    gaps, kinds, lines, counts, open_after = [], [], [], [], []
    marked: bool | None = None
    total = 0
    for number, line in numbered(path):
        location = f"{path}, line {number}"
        record = _record(location, decoded(path, number, line))
        times = _numbers(location, record, "times")
        if not len(times) and "end" not in record:
            raise DataError(
                f'{location}: a sequence without events; remove the line, or say with "end" how long it was'
            )
        if marked is None and len(times):
            marked = "marks" in record
        if len(times) and marked != ("marks" in record):
            has, first = ("has", "has none") if not marked else ("has no", "has them")
            raise DataError(f'{location}: {has} "marks" where the first sequence {first}; give all marks or none')
        has_marks = "marks" in record
        sequence_marks = (
            _marks(location, record, len(times), marks) if has_marks else np.zeros(len(times), dtype=np.int64)
        )
        total += len(times)
        check_size(path, total)
        with np.errstate(over="ignore"):  # an infinite gap is an error with its place
            gaps.append(np.diff(times, prepend=0.0))
        kinds.append(sequence_marks)
        counts.append(len(times))
        lines.append(number)
        open_after.append(_open(location, record, times))
    ends = np.cumsum(counts)

    def place(event: int) -> str:
        sequence = int(np.searchsorted(ends, event, side="right"))
        return f"{path}, line {lines[sequence]}, event {event - int(ends[sequence]) + counts[sequence] + 1}"

    flat = np.concatenate(kinds)
    if not len(flat):
        raise DataError(f"{path}: no sequence has an event; expected events on some lines")
    return EventData.of(
        np.concatenate(gaps), flat, np.array(counts), marks or int(flat.max()) + 1, place, np.array(open_after)
    )


def _record(location: str, text: str) -> dict[str, Any]:
    record = parse_json(text, location)
    if not isinstance(record, dict):
        raise DataError(f'{location}: expected a JSON object like {{"times": [0.5, 1.25], "marks": [0, 2]}}')
    for key in record:
        if key not in _KEYS:
            raise DataError(f"{location}: {UnknownNameError('key', key, _KEYS)}")
    if "times" not in record:
        raise DataError(f'{location}: no "times"; expected an object like {{"times": [0.5, 1.25], "marks": [0, 2]}}')
    return record


def _numbers(location: str, record: dict[str, Any], key: str) -> np.ndarray:
    """A list of finite numbers."""
    values = record[key]
    if not isinstance(values, list):
        raise DataError(f'{location}: "{key}" is not a list of numbers; write [...]')
    for index, value in enumerate(values):
        _number(f"{location}, event {index + 1}", value)
    return np.array(values, dtype=np.float64)


def _number(location: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise DataError(f"{location}: {shortened(json.dumps(value))} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"{location}: a time that is not finite; remove the event or fix its time")
    return number


def _marks(location: str, record: dict[str, Any], events: int, most: int | None) -> np.ndarray:
    values = record["marks"]
    if not isinstance(values, list) or len(values) != events:
        given = f"{len(values)} of them" if isinstance(values, list) else "no list"
        raise DataError(f'{location}: "marks" must be a list of {events}, one for each time, got {given}')
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < (most or MOST_MARKS):
            allowed = f"0 to {(most or MOST_MARKS) - 1}"
            more = "; raise -o task.marks" if most and type(value) is int and value >= most else ""
            raise DataError(
                f"{location}, event {index + 1}: mark {shortened(json.dumps(value))} is none of {allowed}{more}"
            )
    return np.array(values, dtype=np.int64)


def _open(location: str, record: dict[str, Any], times: np.ndarray) -> float:
    """How long the observation went on after the last event; NaN: not longer."""
    if "end" not in record:
        return math.nan
    end = _number(f'{location}, "end"', record["end"])
    if not len(times):
        if end <= 0:
            raise DataError(f'{location}: "end" is {end:g} for a sequence without events; expected a time after 0')
        return end
    open_after = end - float(times[-1])
    if open_after < 0:
        raise DataError(f'{location}: "end" is {end:g}, before the last event at {times[-1]:g}')
    return open_after or math.nan
