"""The input lines of a stream.

A line has the columns x1, ..., y1, ... of the task, separated by commas. It is a point, or a query if all outputs are
empty or `?`:

    x1,x2,y1        an optional header: a first line without numbers; unknown names are reported, and the columns are
                    taken by position
    0.5,1,2.25      a point
    0.5,2,?         a query

Blank lines, and quotation marks around a field, are ignored. In classification, the only output is `label`, an integer
from 0; in a stream of tokens it is `token`, without inputs. For events, see `event_lines`.
"""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from iclbench.core.errors import DataError
from iclbench.core.formats import as_one_line
from iclbench.families.tabular.numerals import number, resembles_number

if TYPE_CHECKING:
    from iclbench.core.task import TaskShape

log = logging.getLogger("iclbench")


@dataclass(frozen=True)
class Line:
    """A point, or a query if `y` is None. `number` is the line number, from 1. `time` is the time of an event, as in
    the file."""

    number: int
    x: list[float]
    y: list[float] | None
    time: float | None = None


@dataclass(frozen=True)
class LineFormat:
    """The columns of a task's points.

    Attributes:
        inputs: names of the input columns.
        outputs: names of the output columns.
        classes: number of classes; None for regression.
        largest_value: the largest absolute value that the model supports.
        number_advice: the text in messages on how to write a number.
        query_advice: the text in messages on how to write a query.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    classes: int | None
    largest_value: float

    number_advice: ClassVar[str] = "write a number such as 0.5 (only outputs may be ?)"
    query_advice: ClassVar[str] = "? for the outputs of a query"

    @classmethod
    def of(cls, shape: TaskShape, largest_value: float) -> LineFormat:
        """Create the format of a task's points, except for events (`EventFormat.of_events`)."""
        outputs = (label_column(shape),) if shape.classes is not None else _numbered("y", shape.y_dim)
        return cls(_numbered("x", shape.x_dim), outputs, shape.classes, largest_value)

    def read(self, lines: Iterable[str], name: str) -> Iterator[Line]:
        """Parse the points and queries of a file.

        Args:
            lines: the lines of the file, read lazily.
            name: name of the file.

        Raises:
            DataError: a line cannot be read; the message names the line.
        """
        is_first = True
        for index, text in enumerate(lines, 1):
            try:
                fields = _fields(text)
                if not fields:
                    continue
                if is_first and any(fields) and not any(resembles_number(field) or field == "?" for field in fields):
                    self._check_header(fields, name)
                else:
                    yield self._line(index, fields)
            except DataError as error:
                raise DataError(f"{name}, line {index}: {error}", code=error.code) from None
            is_first = False

    def _check_header(self, fields: list[str], name: str) -> None:
        self._check_count(fields)
        expected = [*self.inputs, *self.outputs]
        names = [field.casefold() for field in fields]
        if any(word in expected and word != expected_name for word, expected_name in zip(names, expected, strict=True)):
            raise DataError(f"the columns are in the wrong order; write them as {','.join(expected)}")
        if unknown := [field for field, expected_name in zip(names, expected, strict=True) if field != expected_name]:
            log.info(
                f"{name}: the header has unknown names ({', '.join(map(as_one_line, unknown[:6]))}); columns are taken "
                f"by position as {','.join(expected)}"
            )

    def _check_count(self, fields: list[str]) -> None:
        expected = [*self.inputs, *self.outputs]
        if len(fields) != len(expected):
            raise DataError(
                f"{len(fields)} column{'s' * (len(fields) != 1)} instead of {len(expected)}; "
                f"write {','.join(expected)}, with {self.query_advice}"
            )

    def _line(self, index: int, fields: list[str]) -> Line:
        self._check_count(fields)
        inputs, outputs = fields[: len(self.inputs)], fields[len(self.inputs) :]
        x = [self._number(name, field) for name, field in zip(self.inputs, inputs, strict=True)]
        if all(field in ("", "?") for field in outputs):
            return Line(index, x, None)
        y = [self._number(name, field) for name, field in zip(self.outputs, outputs, strict=True)]
        if self.classes is not None and not (y[0].is_integer() and 0 <= y[0] < self.classes):
            raise DataError(f"{self.outputs[0]} is {outputs[0]}; {self._class_advice}")
        return Line(index, x, y)

    @property
    def _class_advice(self) -> str:
        assert self.classes is not None
        return f"write an integer from 0 to {self.classes - 1}, or ? for a query"

    def _number(self, column: str, field: str) -> float:
        value = number(field)
        if value is None:
            advice = self.number_advice if self.classes is None or column in self.inputs else self._class_advice
            raise DataError(f"{column} is {field[:40]!r}, which is not a number; {advice}")
        if not math.isfinite(value):
            raise DataError(f"{column} is {field}; write finite numbers only")
        if abs(value) > self.largest_value:
            raise DataError(f"{column} is {field}, outside +-{self.largest_value:.2g}; scale the data or try --float64")
        return value


def label_column(shape: TaskShape) -> str:
    """Return the name of the column with class labels: `token` for streams of tokens, otherwise `label`."""
    return "token" if shape.inputs == "tokens" else "label"


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}{i}" for i in range(1, count + 1))


def _fields(text: str) -> list[str]:
    """Split a line into its fields; the list is empty for a blank line."""
    text = text.removeprefix("\ufeff").strip()
    if '"' not in text:
        return [field.strip() for field in text.split(",")] if text else []
    try:
        (fields,) = csv.reader([text], skipinitialspace=True)
    except (csv.Error, ValueError) as error:
        raise DataError(f"the line is not valid CSV ({error})", code="bad-syntax") from None
    return [field.strip() for field in fields]
