"""The lines of a stream: what comes in and what goes out.

A line has the columns x1, ..., y1, ... of the task, separated by commas. It is a point to learn, or a query where all
outputs are empty or `?`:

    x1,x2,y1        a header, if there is one: a first line in which nothing is a number
    0.5,1,2.25      a point
    0.5,2,?         a query

Blank lines mean nothing. In classification the only output is `label`, an integer from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iclbench.errors import DataError

if TYPE_CHECKING:
    from iclbench.backbones.base import TaskShape


@dataclass(frozen=True)
class Line:
    """A point, or a query where `y` is None; `number` counts from 1 in its file."""

    number: int
    x: list[float]
    y: list[float] | None


@dataclass(frozen=True)
class LineFormat:
    """Columns of a task's points.

    Attributes:
        inputs, outputs: names of the columns.
        classes: number of classes; None for regression.
        largest: the largest number that the model can compute with.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    classes: int | None
    largest: float

    @classmethod
    def of(cls, shape: TaskShape, largest: float) -> LineFormat:
        outputs = ("label",) if shape.classes is not None else _numbered("y", shape.y_dim)
        return cls(_numbered("x", shape.x_dim), outputs, shape.classes, largest)

    def read(self, lines: Iterable[str], where: str) -> Iterator[Line]:
        """The points and queries of a file.

        Args:
            lines: its lines, read as they are asked for.
            where: name of the file.

        Raises:
            DataError: a line cannot be read; the message names it.
        """
        first = True
        for number, text in enumerate(lines, 1):
            fields = [field.strip() for field in text.removeprefix("\ufeff").split(",")]
            if fields == [""]:
                continue
            try:
                if first and not any(_is_number(field) or field == "?" for field in fields):
                    self._check_header(fields)
                else:
                    yield self._line(number, fields)
            except DataError as error:
                raise DataError(f"{where}, line {number}: {error}") from None
            first = False

    def _check_header(self, fields: list[str]) -> None:
        self._check_count(fields)
        expected = [*self.inputs, *self.outputs]
        if fields != expected and sorted(fields) == sorted(expected):
            raise DataError(f"the columns are in another order; write them as {','.join(expected)}")

    def _check_count(self, fields: list[str]) -> None:
        expected = [*self.inputs, *self.outputs]
        if len(fields) != len(expected):
            raise DataError(
                f"{len(fields)} column{'s' * (len(fields) != 1)} instead of {len(expected)}; "
                f"write {','.join(expected)}, with ? for the outputs of a query"
            )

    def _line(self, number: int, fields: list[str]) -> Line:
        self._check_count(fields)
        inputs, outputs = fields[: len(self.inputs)], fields[len(self.inputs) :]
        x = [self._number(name, field) for name, field in zip(self.inputs, inputs, strict=True)]
        if all(field in ("", "?") for field in outputs):
            return Line(number, x, None)
        y = [self._number(name, field) for name, field in zip(self.outputs, outputs, strict=True)]
        if self.classes is not None and not (y[0].is_integer() and 0 <= y[0] < self.classes):
            raise DataError(f"label is {outputs[0]}; write an integer from 0 to {self.classes - 1}")
        return Line(number, x, y)

    def _number(self, column: str, field: str) -> float:
        if not _is_number(field):
            raise DataError(f"{column} is {field[:40]!r}, not a number")
        value = float(field)
        if not math.isfinite(value):
            raise DataError(f"{column} is {field}; write finite numbers only")
        if abs(value) > self.largest:
            raise DataError(
                f"{column} is {field}, more than {self.largest:.2g} in size; scale the data or try --float64"
            )
        return value


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}{i}" for i in range(1, count + 1))


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # Python's own way of writing numbers, and nobody else's
