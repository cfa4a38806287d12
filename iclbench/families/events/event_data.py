"""Event sequences in memory, as readers return them, and their preprocessing.

All sequences are in flat arrays, one after the other. Times are stored as gaps: the gap of an event is the time since
the previous event of its sequence or, for the first event, since the start of the observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64

from iclbench.core.errors import DataError
from iclbench.core.hashing import data_fingerprint

# A file with more marks is refused, since its values are probably not marks.
MAX_MARKS = 100_000

_FIX_TIES = "keep the first of these events, or spread them over a step of the clock: -o task.ties=keep-first or spread"
_FIX_START = "take the first event of every sequence as its start: -o task.start=first"


@dataclass(frozen=True)
class EventData:
    """The sequences of a file.

    Attributes:
        gaps: gaps of all events in the units of the file.
        marks: 0-based marks of all events.
        counts: number of events of every sequence, 0 for a window without events.
        open_intervals: time of observation after the last event of every sequence; NaN if the observation ends with
            this event.
        mark_count: number of marks K.
        location_of: a function that describes the position of an event in the file, given the number of the event.
        event_numbers: numbers of the events, counted over all sequences of the file.
        sequence_numbers: numbers of the sequences in the file.
    """

    gaps: Float64[np.ndarray, " events"]
    marks: Int64[np.ndarray, " events"]
    counts: Int64[np.ndarray, " sequences"]
    open_intervals: Float64[np.ndarray, " sequences"]
    mark_count: int
    location_of: Callable[[int], str]
    event_numbers: Int64[np.ndarray, " events"]
    sequence_numbers: Int64[np.ndarray, " sequences"]

    @classmethod
    def of(
        cls,
        gaps: Float64[np.ndarray, " events"],
        marks: Int64[np.ndarray, " events"],
        counts: Int64[np.ndarray, " sequences"],
        mark_count: int,
        location_of: Callable[[int], str],
        open_intervals: Float64[np.ndarray, " sequences"] | None = None,
    ) -> EventData:
        """Create the data of all events of a file.

        Raises:
            DataError: a time or a gap is not finite.
        """
        not_finite = np.flatnonzero(~np.isfinite(gaps))
        if len(not_finite):
            raise DataError(
                f"{location_of(int(not_finite[0]))}: the time is not finite; remove the event or fix its time"
            )
        if open_intervals is None:
            open_intervals = np.full(len(counts), np.nan)
        events, sequences = np.arange(len(gaps)), np.arange(len(counts))
        return cls(gaps, marks, counts, open_intervals, mark_count, location_of, events, sequences)

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def first_event(self) -> Int64[np.ndarray, " sequences"]:
        """Index of the first event of every sequence. For a sequence without events, it is the index of the next
        event."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def is_first(self) -> Bool[np.ndarray, " events"]:
        """Whether each event is the first event of its sequence."""
        is_first = np.zeros(len(self.gaps), dtype=bool)
        is_first[self.first_event[self.counts > 0]] = True
        return is_first

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all sequences."""
        arrays = (self.gaps, self.marks, self.counts, np.nan_to_num(self.open_intervals, nan=-1.0))
        return data_fingerprint(f"{self.mark_count} {len(self)}", *(array.tobytes() for array in arrays))

    def from_first_event(self) -> EventData:
        """Return the sequences observed from their first event, which then does not count as an event. Sequences
        without events, and sequences whose observation ends with their first event, are removed."""
        nonempty = self.select(np.flatnonzero(self.counts > 0))
        return nonempty._remove_events(nonempty.is_first)

    def resolve_ties(self, ties: str) -> EventData:
        """Return these sequences with strictly increasing times.

        Args:
            ties: treatment of events at the same time or at the start of the observation. `refuse` raises an error.
                `keep-first` retains the first event of each time, and removes events at the start; sequences that then
                have neither events nor an open interval are removed. `spread` moves m such events to equal distances
                within one step of the clock (the smallest positive gap of the file) and preserves their order.

        Raises:
            DataError: times decrease; events are tied and `ties` is `refuse`; or all gaps are 0 and `ties` is `spread`.
        """
        self._raise_if_any(self.gaps < 0, "the gap to {before} is {gap:g}; times must increase")
        is_tied = self.gaps == 0
        if not is_tied.any():
            return self
        if ties == "keep-first":
            return self._remove_events(is_tied)
        if ties == "spread":
            return self._spread_ties(is_tied)
        self._raise_if_any(is_tied, "at the same time as {before}{others}; {fix}")
        return self

    def check_start(self, max_ratio: int) -> None:
        """Check that times count from the start of the observation: the median first gap must be at most `max_ratio`
        times the median gap between events.

        Raises:
            DataError: the median first gap is larger.
        """
        first_gaps, later_gaps = self.gaps[self.is_first], self.gaps[~self.is_first]
        if len(first_gaps) and len(later_gaps) and np.median(first_gaps) > max_ratio * np.median(later_gaps):
            raise DataError(
                f"{self.location_of(int(self.event_numbers[0]))}: the median first gap is {np.median(first_gaps):.3g}, "
                f"but the median gap between events is {np.median(later_gaps):.3g}, so times seem not to count from "
                f"the start of the observation; {_FIX_START}; if they do: -o task.start=zero",
                code="missing-value",
            )

    def _raise_if_any(self, is_wrong: Bool[np.ndarray, " events"], message: str) -> None:
        """Raise `DataError` with the position of the first wrong event if any event is wrong."""
        wrong_events = np.flatnonzero(is_wrong)
        if not len(wrong_events):
            return
        event, more = int(wrong_events[0]), len(wrong_events) - 1
        is_first = bool(self.is_first[event])
        text = message.format(
            gap=self.gaps[event],
            before="the start of the observation, which is time 0" if is_first else "the event before",
            others=f" (and {more:,} more events)" if more else "",
            fix=_FIX_TIES,
        )
        start_advice = f"; or {_FIX_START}" if is_first else ""
        raise DataError(f"{self.location_of(int(self.event_numbers[event]))}: {text}{start_advice}")

    def _remove_events(self, is_removed: Bool[np.ndarray, " events"]) -> EventData:
        """Return these sequences without the events for which `is_removed` is true. The other gaps do not change, since
        removed events have gaps of 0 or become the start of the observation."""
        cumulative = np.concatenate([[0], np.cumsum(~is_removed)])
        counts = cumulative[self.first_event + self.counts] - cumulative[self.first_event]
        is_observed = (counts > 0) | ~np.isnan(self.open_intervals)
        return replace(
            self,
            gaps=self.gaps[~is_removed],
            marks=self.marks[~is_removed],
            event_numbers=self.event_numbers[~is_removed],
            counts=counts[is_observed],
            open_intervals=self.open_intervals[is_observed],
            sequence_numbers=self.sequence_numbers[is_observed],
        )

    def _spread_ties(self, is_tied: Bool[np.ndarray, " events"]) -> EventData:
        """Return these sequences with tied events at equal distances within one step of the clock."""
        step = self.gaps[~is_tied].min(initial=np.inf)
        if not np.isfinite(step):
            raise DataError(
                f"{self.location_of(int(self.event_numbers[0]))}: all events are at the same time, so the step of the "
                "clock is not known; use -o task.ties=keep-first"
            )
        # A first event starts a group. If it is tied to the start of the observation, the group includes the start.
        starts_group = ~is_tied | self.is_first
        group = np.cumsum(starts_group) - 1
        group_start = np.flatnonzero(starts_group)
        includes_start = is_tied[group_start]
        size = np.bincount(group) + includes_start
        delay = step * (np.arange(len(group)) - group_start[group] + includes_start[group]) / size[group]
        previous_delay = np.concatenate([[0.0], delay[:-1]])
        previous_delay[self.is_first] = 0.0
        open_intervals = self.open_intervals.copy()
        has_events = self.counts > 0
        open_intervals[has_events] -= delay[(self.first_event + self.counts - 1)[has_events]]
        return replace(
            self,
            gaps=self.gaps + delay - previous_delay,
            open_intervals=np.where(open_intervals > 0, open_intervals, np.nan),
        )

    def select(self, sequences: Int64[np.ndarray, " sequences"]) -> EventData:
        """Return the given sequences in the given order."""
        counts = self.counts[sequences]
        start = np.cumsum(counts) - counts
        events = np.repeat(self.first_event[sequences] - start, counts) + np.arange(counts.sum())
        return replace(
            self,
            gaps=self.gaps[events],
            marks=self.marks[events],
            event_numbers=self.event_numbers[events],
            counts=counts,
            open_intervals=self.open_intervals[sequences],
            sequence_numbers=self.sequence_numbers[sequences],
        )

    def windows(self, max_events: int) -> EventData:
        """Split sequences into consecutive windows of at most `max_events` events. The observation of a window starts
        at the last event of the window before."""
        # The open interval is in the last window, which has no events if all earlier windows are full.
        window_counts = np.where(
            np.isnan(self.open_intervals), -(-self.counts // max_events), self.counts // max_events + 1
        )
        last_window = np.cumsum(window_counts) - 1
        counts = np.full(int(window_counts.sum()), max_events)
        counts[last_window] = self.counts - max_events * (window_counts - 1)
        open_intervals = np.full(len(counts), np.nan)
        open_intervals[last_window] = self.open_intervals
        sequence_numbers = np.repeat(self.sequence_numbers, window_counts)
        return replace(self, counts=counts, open_intervals=open_intervals, sequence_numbers=sequence_numbers)

    @property
    def mean_gap(self) -> float:
        """Total time of observation, including open intervals, divided by the number of events. It is the inverse of
        the maximum-likelihood rate of a Poisson process."""
        return float((self.gaps.sum() + np.nansum(self.open_intervals)) / len(self.gaps))

    @property
    def mean_first_gap(self) -> float:
        """Total time to first events, including windows without events, divided by the number of first events."""
        is_first, is_empty = self.is_first, self.counts == 0
        return float((self.gaps[is_first].sum() + np.nansum(self.open_intervals[is_empty])) / is_first.sum())

    def times(self) -> Float64[np.ndarray, " events"]:
        """Return the time of every event since the start of its sequence."""
        gaps = np.split(self.gaps, self.first_event[1:])
        return np.concatenate([np.cumsum(sequence) for sequence in gaps]) if len(self) else self.gaps
