"""The clock of an event stream: the start of the observation and the time of the last event.

A model reads the gaps between events. Gaps are computed in double precision and converted to the unit of time of the
training data. Answers are converted back to the user's unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from iclbench.core.errors import DataError, UsageError
from iclbench.families.base import Family
from iclbench.families.tabular.numerals import number

# The column groups of an event prediction (`iclbench.core.events`) that are durations.
DURATIONS = ("gap", "median", "low", "high")
# The value of `start` if the observation starts with the first line.
FIRST = "first"


def parse_start(start: float | str) -> float | None:
    """Parse the time at which an observation started; None means that it starts with the first event.

    Raises:
        UsageError: `start` is not a finite number or `first`.
    """
    if start == FIRST:
        return None
    time = number(start) if isinstance(start, str) else start
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
        raise UsageError(f"start: expected a time or '{FIRST}', got {start!r}", code="bad-value")
    return float(time)


@dataclass
class Clock:
    """The clock of one event stream.

    Attributes:
        start: time at which the observation started; None if it starts with the first line, which then is not an event.
        unit: the model's unit of time, in the user's unit.
        last_time: time of the last learned event, or the start.
        is_resumed: whether the clock comes from a saved state, so that its start cannot be changed.
    """

    start: float | None = 0.0
    unit: float = 1.0
    last_time: float | None = None
    is_resumed: bool = False

    def __post_init__(self) -> None:
        self.last_time = self.start if self.last_time is None else self.last_time

    def start_at(self, time: float) -> None:
        """Set the start of the observation."""
        self.start = self.last_time = time

    @classmethod
    def of_family(cls, family: Family, start: float | str | None = None) -> Clock:
        """Create the clock of a stream for the task on which a model was trained.

        Args:
            family: the family of the task.
            start: time at which the observation started, or `first` if it starts with the first line, which then is
                not an event (default: as in the task).

        Raises:
            UsageError: `start` is not a finite number or `first`.
        """
        if start is None:
            return cls(None if family.starts_with_event else 0.0, family.time_unit)
        return cls(parse_start(start), family.time_unit)

    def answer(
        self, columns: dict[str, list[float]], after: float | None = None
    ) -> tuple[float, dict[str, list[float]]]:
        """Return the expected time of the next event, and the columns of the prediction, in the user's unit of time;
        `after` is the time of the last event (default: the last learned event)."""
        last_time = self.last_time if after is None else after
        assert last_time is not None  # otherwise the stream raises an error for a query
        scaled_columns = {
            group: [self.unit * value for value in values] if group in DURATIONS else values
            for group, values in columns.items()
        }
        return last_time + scaled_columns["gap"][0], scaled_columns

    def metadata(self) -> dict[str, str]:
        """Return the start, the last time and the unit as metadata of a saved state, without rounding."""
        times = (
            {"start": FIRST} if self.last_time is None else {"start": repr(self.start), "last": repr(self.last_time)}
        )
        return times | {"unit": repr(self.unit)}

    @classmethod
    def of_state(cls, metadata: Mapping[str, str]) -> Clock:
        """Create the clock of a saved state from the metadata of the state.

        Raises:
            DataError: the metadata lack the start, the time of the last event or the unit of time.
        """
        try:
            unit = float(metadata["unit"])
            if metadata["start"] == FIRST:
                return cls(None, unit, is_resumed=True)
            return cls(float(metadata["start"]), unit, float(metadata["last"]), is_resumed=True)
        except (KeyError, ValueError):
            raise DataError(
                "the state lacks the time of its last event; pass a state written with --save",
                code="unreadable-file",
            ) from None
