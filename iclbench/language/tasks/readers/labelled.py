"""File formats of labelled texts: prefixed labels, the CSV format of AG News, and JSON Lines. A row is (line number,
text, class)."""

from __future__ import annotations

import csv
import io
import reprlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from iclbench.core.errors import DataError
from iclbench.core.json_text import parse_json
from iclbench.language.tasks.readers import files

Row = tuple[int, str, str]
RowsOf = Callable[[Path], Iterator[Row]]


def prefixed_labels(classes: Sequence[str] = ()) -> RowsOf:
    """Return a reader of lines such as `1 the text`, where 1 is an index of `classes`, or `CLASS:subclass the text`."""

    def rows(path: Path) -> Iterator[Row]:
        for number, line in files.numbered_lines(path, corpus=True):
            label, _, text = line.partition(" ")
            if label.isdecimal():
                label = _class_name(path, number, label, classes, start=0)
            else:
                label = label.partition(":")[0]
            yield number, _text(path, number, text), label

    return rows


def title_and_description(classes: Sequence[str]) -> RowsOf:
    """Return a reader of CSV without a header, with the columns class (counted from 1), title and description."""

    def rows(path: Path) -> Iterator[Row]:
        for number, cells in csv_rows(path):
            if len(cells) != 3 or not cells[0].isdecimal():
                raise DataError(
                    f"{path}, line {number}: expected class (1 to {len(classes)}), title and description, got "
                    f"{len(cells)} cells: {reprlib.repr(cells)}"
                )
            label = _class_name(path, number, cells[0], classes, start=1)
            # In these files, a backslash represents a line break.
            text = " ".join(" ".join(cells[1:]).replace("\\", " ").split())
            yield number, _text(path, number, text), label

    return rows


def json_lines(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSON Lines file, which has one object with `text` and `label` on each line."""
    for number, line in files.numbered_lines(path):
        value = parse_json(line, f"{path}, line {number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number}: expected an object with 'text' and 'label'")
        for key in ("text", "label"):
            if key not in value:
                raise DataError(f"{path}, line {number}: '{key}' is missing; the keys are {_first_keys(value)}")
        text, label = value["text"], value["label"]
        if not isinstance(text, str):
            raise DataError(f"{path}, line {number}: expected a string as text, got {reprlib.repr(text)}")
        if not isinstance(label, str | int) or not str(label).strip():
            raise DataError(f"{path}, line {number}: expected a name or a number as label, got {reprlib.repr(label)}")
        yield number, _text(path, number, text), str(label).strip()


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, each with the number of its last line."""
    reader = csv.reader(io.StringIO(files.read_text(path, corpus=True), newline=""))
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV ({error})", code="bad-syntax") from None


def _class_name(path: Path, number: int, label: str, classes: Sequence[str], start: int) -> str:
    index = int(label) - start if len(label) < 9 else -1
    if not 0 <= index < len(classes):
        expected = f"known: {start} to {start + len(classes) - 1}" if classes else "expected a name"
        raise DataError(f"{path}, line {number}: unknown label '{label}'; {expected}")
    return classes[index]


def _text(path: Path, number: int, text: str) -> str:
    if not text.strip():
        raise DataError(f"{path}, line {number}: the text is empty")
    return text.strip()


def _first_keys(keys: Sequence[str] | dict[str, object]) -> str:
    return ", ".join(repr(key) for key in list(keys)[:6]) or "none"
