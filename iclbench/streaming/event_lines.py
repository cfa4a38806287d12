"""The lines of an event stream.

time,mark       an optional header
0.5,2           an event: its time, which increases from line to line, and its mark, an integer from 0
?,?             a query for the time and the mark of the next event
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from iclbench.core.errors import DataError
from iclbench.core.task import TaskShape
from iclbench.streaming.clock import Clock
from iclbench.streaming.lines import Line, LineFormat


@dataclass(frozen=True)
class EventFormat(LineFormat):
    """The format of event lines. Parsed lines contain the values that a model reads: gap, mark and time since the
    start.

    Attributes:
        marks: number of marks K.
        smallest_gap: the smallest gap that the model supports.
        clock: the clock of the stream.
        options: names of two options in error messages: the option for the start of the observation, and the option for
            double precision.
    """

    marks: int
    smallest_gap: float
    clock: Clock
    options: tuple[str, str] = ("--start", "--float64")

    number_advice: ClassVar[str] = "write a number such as 0.5, or ?,? for a query"
    query_advice: ClassVar[str] = "?,? for a query"

    @classmethod
    def of_events(cls, shape: TaskShape, smallest_gap: float, largest_value: float, clock: Clock) -> EventFormat:
        """Create the format for a task with events; the other arguments are attributes of the class."""
        assert shape.marks is not None
        return cls(
            inputs=(),
            outputs=("time", "mark"),
            classes=None,
            largest_value=largest_value,
            marks=shape.marks,
            smallest_gap=smallest_gap,
            clock=clock,
        )

    def read(self, lines: Iterable[str], name: str) -> Iterator[Line]:
        """Parse the events and queries of a file.

        Raises:
            DataError: a line cannot be read, or its time does not increase; the message names the line.
        """
        return self.events(super().read(lines, name), f"{name}, line", "the event on line")

    def events(self, lines: Iterable[Line], line_name: str, event_name: str) -> Iterator[Line]:
        """Convert the time and the mark of each line to the values that the model reads: gap, mark and time since the
        start. If the first line is the start of the observation, it is skipped. Queries do not change.

        Args:
            lines: the lines, in order.
            line_name: words before the number of a line in messages.
            event_name: words before the number of the previous event's line in messages.

        Raises:
            DataError: a time does not increase, or a value is not supported; the message names the line.
        """
        previous_time, previous_name = self.clock.last_time, self._origin_name()
        for line in lines:
            if line.y is None:
                yield line
                continue
            time, mark = line.y
            if previous_time is None:
                self.clock.start_at(time)
            else:
                try:
                    yield self._event(line, time, mark, previous_time, previous_name)
                except DataError as error:
                    raise DataError(f"{line_name} {line.number}: {error}", code=error.code) from None
            previous_time, previous_name = time, f"{event_name} {line.number}"

    def _origin_name(self) -> str:
        is_start = self.clock.last_time == self.clock.start
        return "the start of the observation" if is_start else "the last event of the state"

    def _event(self, line: Line, time: float, mark: float, previous_time: float, previous_name: str) -> Line:
        """Return the line with the values that the model reads."""
        if not time > previous_time:
            relation = "equal to" if time == previous_time else f"less than {previous_time:.15g},"
            advice = self._start_advice(previous_name)
            raise DataError(f"time is {time:.15g}, {relation} the time of {previous_name}; times must increase{advice}")
        if not (mark.is_integer() and 0 <= mark < self.marks):
            raise DataError(f"mark is {mark:g}; write an integer from 0 to {self.marks - 1}")
        assert self.clock.start is not None
        gap, elapsed = (time - previous_time) / self.clock.unit, (time - self.clock.start) / self.clock.unit
        if not self.smallest_gap <= gap <= elapsed <= self.largest_value:
            raise DataError(
                f"time is {time:.15g}; the gap of {time - previous_time:.3g} since {previous_name}, or the time since "
                f"the start, is outside the range that the model's precision supports; try {self.options[1]}"
            )
        return replace(line, y=[gap, mark, elapsed], time=time)

    def _start_advice(self, previous_name: str) -> str:
        is_start = previous_name.startswith("the start")
        return f"; pass the start with {self.options[0]}" if is_start and not self.clock.is_resumed else ""
