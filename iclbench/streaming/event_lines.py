"""The lines of a stream of events.

time,mark       a header, if there is one
0.5,2           an event: the time, which increases from line to line, and the mark, an integer from 0
?,?             a query: when does the next event come, and with what mark?
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
    """Columns of events; lines come with what a model reads of them: gap, mark and time since the start.

    Attributes:
        marks: number of marks K.
        smallest: the smallest gap that the model can compute with.
        clock: of the stream.
        options: what messages advise: to say when the observation started, and to compute with more digits.
    """

    marks: int
    smallest: float
    clock: Clock
    options: tuple[str, str] = ("--start", "--float64")

    like: ClassVar[str] = "write one like 0.5, or ?,? for a query"
    asking: ClassVar[str] = "?,? for a query"

    @classmethod
    def of_events(cls, shape: TaskShape, smallest: float, largest: float, clock: Clock) -> EventFormat:
        """The format of a task."""
        assert shape.marks is not None
        return cls((), ("time", "mark"), None, largest, shape.marks, smallest, clock)

    def read(self, lines: Iterable[str], name: str) -> Iterator[Line]:
        """The events and queries of a file.

        Raises:
            DataError: a line cannot be read, or its time does not increase; the message names it.
        """
        return self.events(super().read(lines, name), f"{name}, line", "the event of line")

    def events(self, lines: Iterable[Line], line_name: str, event_name: str) -> Iterator[Line]:
        """Lines of a time and a mark as what the model reads: gap, mark and time since the start. A first line that
        is the start of the observation is left out; queries stay as they are.

        Args:
            lines: in their order.
            line_name: what messages call a line, before its number.
            event_name: what messages call the event before, before its number.

        Raises:
            DataError: a time does not increase, or an event cannot be computed with; the message names it.
        """
        before, origin = self.clock.last, self._origin()
        for line in lines:
            if line.y is None:
                yield line
                continue
            time, mark = line.y
            if before is None:
                self.clock.started(time)
            else:
                try:
                    yield self._event(line, time, mark, before, origin)
                except DataError as error:
                    raise DataError(f"{line_name} {line.number}: {error}") from None
            before, origin = time, f"{event_name} {line.number}"

    def _origin(self) -> str:
        return "the start of the observation" if self.clock.last == self.clock.start else "the last event of the state"

    def _event(self, line: Line, time: float, mark: float, before: float, previous: str) -> Line:
        """A line with the values that the model reads."""
        if not time > before:
            relation = "the same as that of" if time == before else f"before the {before:.15g} of"
            raise DataError(f"time is {time:.15g}, {relation} {previous}; times must increase{self._advice(previous)}")
        if not (mark.is_integer() and 0 <= mark < self.marks):
            raise DataError(f"mark is {mark:g}; write an integer from 0 to {self.marks - 1}")
        assert self.clock.start is not None
        gap, since = (time - before) / self.clock.unit, (time - self.clock.start) / self.clock.unit
        if not self.smallest <= gap <= since <= self.largest:
            raise DataError(
                f"time is {time:.15g}, and the gap of {time - before:.3g} to {previous} is beyond what the model "
                "computes "
                f"with; try {self.options[1]}"
            )
        return replace(line, y=[gap, mark, since], time=time)

    def _advice(self, previous: str) -> str:
        can_say = previous.startswith("the start") and not self.clock.resumed
        return f"; say when it started with {self.options[0]}" if can_say else ""
