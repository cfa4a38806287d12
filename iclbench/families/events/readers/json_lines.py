"""Reader of JSON files with one sequence per line: `{"times": [0.5, 1.25], "marks": [0, 2], "end": 3.0}`.

Times are absolute and count from the start of the observation; marks are 0-based. If no line has `marks`, there is one
mark. `end`, the end of the observation, is required for a sequence without events and optional otherwise. Other keys
are errors, since they are usually misspelled.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from iclbench.core.errors import DataError, UnknownNameError, shorten
from iclbench.core.json_text import parse_json
from iclbench.families.events.event_data import MAX_MARKS, EventData
from iclbench.families.events.readers.lines import check_size, decode_line, numbered_lines

_KEYS = ("times", "marks", "end")
_EXAMPLE = '{"times": [0.5, 1.25], "marks": [0, 2]}'


def read(path: Path, marks: int | None) -> EventData:
    """Read the sequences of a file; `marks` is the number of marks K (default: the largest mark plus 1).

    Raises:
        DataError: the file has another format. The message names the line and the event, both counted from 1.
    """
    gaps, sequence_marks, lines, counts, open_intervals = [], [], [], [], []
    marks_expected: bool | None = None
    total = 0
    for number, line in numbered_lines(path):
        location = f"{path}, line {number}"
        record = _record(location, decode_line(path, number, line))
        times = _times(location, record["times"])
        if not len(times) and "end" not in record:
            raise DataError(
                f'{location}: the sequence has no events; remove the line, or add the "end" of its observation'
            )
        has_marks = "marks" in record
        if marks_expected is None and len(times):
            marks_expected = has_marks
        if len(times) and marks_expected != has_marks:
            problem = '"marks" is missing' if marks_expected else 'unexpected "marks"'
            raise DataError(
                f"{location}: {problem}, unlike in the first sequence; add marks to all sequences or to none",
                code="bad-syntax",
            )
        sequence_marks.append(
            _marks(location, record["marks"], len(times), marks) if has_marks else np.zeros(len(times), dtype=np.int64)
        )
        total += len(times)
        check_size(path, total)
        with np.errstate(over="ignore"):  # infinite gaps raise an error with their position
            gaps.append(np.diff(times, prepend=0.0))
        counts.append(len(times))
        lines.append(number)
        open_intervals.append(_open_interval(location, record, times))
    ends = np.cumsum(counts)

    def location_of(event: int) -> str:
        sequence = int(np.searchsorted(ends, event, side="right"))
        return f"{path}, line {lines[sequence]}, event {event - int(ends[sequence]) + counts[sequence] + 1}"

    event_marks = np.concatenate(sequence_marks)
    if not len(event_marks):
        raise DataError(f"{path}: all sequences are empty; expected events on at least one line")
    mark_count = marks or int(event_marks.max()) + 1
    return EventData.of(
        np.concatenate(gaps), event_marks, np.array(counts), mark_count, location_of, np.array(open_intervals)
    )


def _record(location: str, text: str) -> dict[str, Any]:
    record = parse_json(text, location)
    if not isinstance(record, dict):
        raise DataError(f"{location}: expected a JSON object like {_EXAMPLE}", code="bad-syntax")
    for key in record:
        if key not in _KEYS:
            error = UnknownNameError("key", key, _KEYS)
            raise DataError(f"{location}: {error}", code=error.code)
    if "times" not in record:
        raise DataError(f'{location}: "times" is missing; expected an object like {_EXAMPLE}', code="bad-syntax")
    return record


def _times(location: str, values: Any) -> np.ndarray:
    """Convert a list of finite numbers to an array."""
    if not isinstance(values, list):
        raise DataError(f'{location}: "times" is not a list of numbers; write [...]', code="bad-syntax")
    for index, value in enumerate(values):
        _finite_number(f"{location}, event {index + 1}", value)
    return np.array(values, dtype=np.float64)


def _finite_number(location: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise DataError(f"{location}: {shorten(json.dumps(value))} is not a number; write a time like 0.5")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"{location}: the time is not finite; remove the event or fix its time")
    return number


def _marks(location: str, values: Any, events: int, mark_count: int | None) -> np.ndarray:
    if not isinstance(values, list) or len(values) != events:
        problem = f"{len(values)} integers" if isinstance(values, list) else "a value of another type"
        raise DataError(
            f'{location}: "marks" must be a list of {events} integers, one per time, got {problem}', code="bad-syntax"
        )
    largest = (mark_count or MAX_MARKS) - 1
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= largest:
            advice = "; raise -o task.marks" if mark_count and type(value) is int and value > largest else ""
            raise DataError(
                f"{location}, event {index + 1}: mark {shorten(json.dumps(value))} is not an integer from 0 to "
                f"{largest}{advice}"
            )
    return np.array(values, dtype=np.int64)


def _open_interval(location: str, record: dict[str, Any], times: np.ndarray) -> float:
    """Return the time of observation after the last event, or NaN if the observation ends with this event."""
    if "end" not in record:
        return math.nan
    end = _finite_number(f'{location}, "end"', record["end"])
    if not len(times):
        if end <= 0:
            raise DataError(f'{location}: "end" is {end:g} for a sequence without events; expected a time after 0')
        return end
    open_interval = end - float(times[-1])
    if open_interval < 0:
        raise DataError(f'{location}: "end" is {end:g}, before the last event at {times[-1]:g}; write a later end')
    return open_interval or math.nan
