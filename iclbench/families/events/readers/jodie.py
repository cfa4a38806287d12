"""Reader of the CSV files of JODIE (Kumar et al. 2019; snap.stanford.edu/jodie): one sequence per user, items as marks.

    user_id,item_id,timestamp,state_label,comma_separated_list_of_features
    0,0,0.0,0,-0.319991,-0.435701,0.106784,-0.067309

As in the published files, the header has fewer names than the rows have fields; fields after the time are not read.
Sequences are in the order of the first events of their users. Marks are numbered in the order of the first events
of their items, unless the items are the numbers 0, 1, ...; these numbers are then the marks (97 in Mooc, 984 in
Reddit). For all users, times are measured from time 0 of the file, the start of the recording.

A user can have several events at the same time, because times are in whole seconds; see the parameter `ties`
(`iclbench.families.events.sequences`).
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from iclbench.core.errors import DataError, shorten
from iclbench.families.events.event_data import MAX_MARKS, EventData
from iclbench.families.events.readers.lines import check_size, decode_line, numbered_lines
from iclbench.families.tabular.numerals import number

_COLUMNS = (("user_id", "user"), ("item_id", "item"), ("timestamp",))
_HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"


def read(path: Path, marks: int | None) -> EventData:
    """Read the sequences of a file; `marks` is the number of marks K (default: the number of items).

    Raises:
        DataError: the file has another format; the message names the line, counted from 1.
    """
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    user_numbers, item_numbers, timestamps, lines = array("q"), array("q"), array("d"), array("q")
    max_marks = marks or MAX_MARKS
    for line, text in numbered_lines(path):
        fields = decode_line(path, line, b",".join(text.split(b",", 3)[:3])).split(",")
        if not timestamps and not lines:
            lines.append(line)
            _check_header(path, line, fields)
            continue
        user, item, time = _event(f"{path}, line {line}", fields)
        user_numbers.append(users.setdefault(user, len(users)))
        item_numbers.append(items.setdefault(item, len(items)))
        timestamps.append(time)
        lines.append(line)
        if len(items) > max_marks:
            advice = "; raise -o task.marks" if marks else ""
            raise DataError(
                f"{path}, line {line}: with item '{shorten(item)}', the file has more than {max_marks:,} items{advice}",
                code="too-large",
            )
        if not len(timestamps) % 4096:
            check_size(path, len(timestamps))
    if not timestamps:
        raise DataError(f"{path} has a header but no rows; add a row for every event")
    check_size(path, len(timestamps))
    order = np.argsort(np.array(user_numbers), kind="stable")
    counts = np.bincount(np.array(user_numbers))
    times = np.array(timestamps)[order]
    previous_times = np.concatenate([[0.0], times[:-1]])
    previous_times[np.cumsum(counts) - counts] = 0.0
    line_numbers = np.array(lines[1:])[order]
    event_marks = _item_marks(items)[np.array(item_numbers)][order]

    def location_of(event: int) -> str:
        return f"{path}, line {line_numbers[event]}"

    return EventData.of(times - previous_times, event_marks, counts, marks or len(items), location_of)


def _check_header(path: Path, line: int, fields: list[str]) -> None:
    names = [field.strip().lower() for field in fields]
    if len(names) < 3 or any(name not in spellings for name, spellings in zip(names, _COLUMNS, strict=True)):
        raise DataError(
            f"{path}, line {line}: expected the header {_HEADER}, or at least its first three columns",
            code="bad-syntax",
        )


def _event(location: str, fields: list[str]) -> tuple[str, str, float]:
    """Return the user, item and time of a row."""
    if len(fields) < 3:
        raise DataError(
            f"{location}: expected at least user, item and time, got {len(fields)} fields", code="bad-syntax"
        )
    user, item, time_text = (field.strip() for field in fields)
    if not user or not item or '"' in user + item:
        name = "user" if not user or '"' in user else "item"
        raise DataError(
            f"{location}: the {name} is empty or has quotes; write a number or a word without quotes", code="bad-syntax"
        )
    time = number(time_text)
    if time is None:
        raise DataError(
            f"{location}: the time '{shorten(time_text)}' is not a number; write it in seconds or another unit"
        )
    return user, item, time


def _item_marks(items: dict[str, int]) -> np.ndarray:
    """Return the marks of the items, given the items in the order of their first events."""
    if set(items) == {str(index) for index in range(len(items))}:
        return np.array([int(item) for item in items])
    return np.arange(len(items))
