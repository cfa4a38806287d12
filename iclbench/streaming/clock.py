"""The time of a stream of events: when its observation started, and when the last event came.

A model reads the gap between two events. Gaps are differences of times in double precision, whatever that of the model,
in the unit of time that the model was trained in; what it answers is given back in the user's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from iclbench.core.errors import DataError, UsageError
from iclbench.families.base import Family
from iclbench.families.tabular.numerals import number

# The groups of columns of an event's prediction (`iclbench.core.events`) that are lengths of time.
LENGTHS = ("gap", "median", "low", "high")
# What is said of a start that is still to come with the first line.
FIRST = "first"


def started_at(start: float | str) -> float | None:
    """The time at which an observation started; None: with the first event.

    Raises:
        UsageError: it is neither a finite number nor `first`.
    """
    if start == FIRST:
        return None
    time = number(start) if isinstance(start, str) else start
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
        raise UsageError(f"start: expected a time or '{FIRST}', got {start!r}")
    return float(time)


@dataclass
class Clock:
    """The clock of one stream.

    Attributes:
        start: when the observation started; None: with the first line, which then is no event.
        unit: length of the model's unit of time in the user's.
        last: time of the last event that was learned, or the start.
        resumed: whether a saved state says all this, and nothing can be chosen any more.
    """

    start: float | None = 0.0
    unit: float = 1.0
    last: float | None = None
    resumed: bool = False

    def __post_init__(self) -> None:
        self.last = self.start if self.last is None else self.last

    def started(self, time: float) -> None:
        """The observation starts now."""
        self.start = self.last = time

    @classmethod
    def of_family(cls, family: Family, start: float | str | None = None) -> Clock:
        """The clock of sequences like those that a model was trained on.

        Args:
            family: of the task.
            start: when the observation started, or `first`: with the first event, which then is none; None: as the
                task has it.

        Raises:
            UsageError: `start` is neither.
        """
        if start is None:
            return cls(None if family.starts_with_event else 0.0, family.time_unit)
        return cls(started_at(start), family.time_unit)

    def answer(
        self, columns: dict[str, list[float]], after: float | None = None
    ) -> tuple[float, dict[str, list[float]]]:
        """When the next event is expected, and what is predicted, in the user's unit of time; `after` is the time of
        the last event, None: that which was learned last."""
        last_time = self.last if after is None else after
        assert last_time is not None  # or no query is answered
        scaled = {
            group: [self.unit * value for value in values] if group in LENGTHS else values
            for group, values in columns.items()
        }
        return last_time + scaled["gap"][0], scaled

    def about(self) -> dict[str, str]:
        """Entries of a saved state about the time, to the last digit."""
        entries = {"start": FIRST} if self.last is None else {"start": repr(self.start), "last": repr(self.last)}
        return entries | {"unit": repr(self.unit)}

    @classmethod
    def of_state(cls, about: Mapping[str, str]) -> Clock:
        """The clock of a saved state, from the metadata that it was saved with.

        Raises:
            DataError: the metadata do not hold the time or its unit.
        """
        try:
            unit = float(about["unit"])
            if about["start"] == FIRST:
                return cls(None, unit, resumed=True)
            return cls(float(about["start"]), unit, float(about["last"]), resumed=True)
        except (KeyError, ValueError):
            raise DataError(
                "the state does not say when its last event came; give one that --save has written"
            ) from None
