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
    gaps, kinds, lines, counts, after = [], [], [], [], []
    marked: bool | None = None
    total = 0
    for number, line in numbered(path):
        where = f"{path}, line {number}"
        found = _record(where, decoded(path, number, line))
        times = _numbers(where, found, "times")
        if not len(times) and "end" not in found:
            raise DataError(f'{where}: a sequence without events; remove the line, or say with "end" how long it was')
        if marked is None and len(times):
            marked = "marks" in found
        if len(times) and marked != ("marks" in found):
            has, first = ("has", "has none") if not marked else ("has no", "has them")
            raise DataError(f'{where}: {has} "marks" where the first sequence {first}; give all marks or none')
        given = "marks" in found
        own = _marks(where, found, len(times), marks) if given else np.zeros(len(times), dtype=np.int64)
        total += len(times)
        check_size(path, total)
        with np.errstate(over="ignore"):  # an infinite gap is an error with its place
            gaps.append(np.diff(times, prepend=0.0))
        kinds.append(own)
        counts.append(len(times))
        lines.append(number)
        after.append(_open(where, found, times))
    ends = np.cumsum(counts)

    def place(event: int) -> str:
        sequence = int(np.searchsorted(ends, event, side="right"))
        return f"{path}, line {lines[sequence]}, event {event - int(ends[sequence]) + counts[sequence] + 1}"

    flat = np.concatenate(kinds)
    if not len(flat):
        raise DataError(f"{path}: no sequence has an event; expected events on some lines")
    return EventData.of(
        np.concatenate(gaps), flat, np.array(counts), marks or int(flat.max()) + 1, place, np.array(after)
    )


def _record(where: str, text: str) -> dict[str, Any]:
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise DataError(f'{where}: expected a JSON object like {{"times": [0.5, 1.25], "marks": [0, 2]}}')
    for key in found:
        if key not in _KEYS:
            raise DataError(f"{where}: {UnknownNameError('key', key, _KEYS)}")
    if "times" not in found:
        raise DataError(f'{where}: no "times"; expected an object like {{"times": [0.5, 1.25], "marks": [0, 2]}}')
    return found


def _numbers(where: str, found: dict[str, Any], key: str) -> np.ndarray:
    """A list of finite numbers."""
    values = found[key]
    if not isinstance(values, list):
        raise DataError(f'{where}: "{key}" is no list of numbers; write [...]')
    for index, value in enumerate(values):
        _number(f"{where}, event {index + 1}", value)
    return np.array(values, dtype=np.float64)


def _number(where: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise DataError(f"{where}: {shortened(json.dumps(value))} is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"{where}: a time that is not finite; remove the event or mend its time")
    return number


def _marks(where: str, found: dict[str, Any], events: int, most: int | None) -> np.ndarray:
    values = found["marks"]
    if not isinstance(values, list) or len(values) != events:
        got = f"{len(values)} of them" if isinstance(values, list) else "no list"
        raise DataError(f'{where}: "marks" must be a list of {events}, one for each time, got {got}')
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < (most or MOST_MARKS):
            known = f"0 to {(most or MOST_MARKS) - 1}"
            more = "; raise -o task.marks" if most and type(value) is int and value >= most else ""
            raise DataError(f"{where}, event {index + 1}: mark {shortened(json.dumps(value))} is none of {known}{more}")
    return np.array(values, dtype=np.int64)


def _open(where: str, found: dict[str, Any], times: np.ndarray) -> float:
    """How long the observation went on after the last event; NaN: not longer."""
    if "end" not in found:
        return math.nan
    end = _number(f'{where}, "end"', found["end"])
    if not len(times):
        if end <= 0:
            raise DataError(f'{where}: "end" is {end:g} for a sequence without events; expected a time after 0')
        return end
    left = end - float(times[-1])
    if left < 0:
        raise DataError(f'{where}: "end" is {end:g}, before the last event at {times[-1]:g}')
    return left or math.nan
