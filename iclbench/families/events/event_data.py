"""Event sequences in memory, as a reader of files hands them over, and what is done with them before they are drawn.

All sequences are in flat arrays, one after the other. Times are stored as gaps: the gap of an event is the time since
the event before it in its sequence, or since the start of the observation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64

from iclbench.core.errors import DataError

# More marks than this are a mistake, or numbers that are no marks.
MOST_MARKS = 100_000

_FIX_TIES = "keep the first of such events, or spread them over a step of the clock: -o task.ties=keep-first or spread"
_FIX_START = "take the first event of every sequence as its start: -o task.start=first"


@dataclass(frozen=True)
class EventData:
    """The sequences of a file.

    Attributes:
        gaps: of all events, in the units of the file.
        marks: 0-based.
        counts: events of every sequence; 0: a window in which nothing happened.
        open: how long a sequence was observed after its last event; NaN: not longer.
        kinds: number of marks K.
        place: position of an event in the file, in words, by its number there.
        events: numbers of the events in the file, counted over all of its sequences.
        sequences: numbers of the sequences in the file.
    """

    gaps: Float64[np.ndarray, " events"]
    marks: Int64[np.ndarray, " events"]
    counts: Int64[np.ndarray, " sequences"]
    open: Float64[np.ndarray, " sequences"]
    kinds: int
    place: Callable[[int], str]
    events: Int64[np.ndarray, " events"]
    sequences: Int64[np.ndarray, " sequences"]

    @classmethod
    def of(
        cls,
        gaps: Float64[np.ndarray, " events"],
        marks: Int64[np.ndarray, " events"],
        counts: Int64[np.ndarray, " sequences"],
        kinds: int,
        place: Callable[[int], str],
        open_after: Float64[np.ndarray, " sequences"] | None = None,
    ) -> EventData:
        """All events of a file.

        Raises:
            DataError: a time or a gap is not finite.
        """
        bad = np.flatnonzero(~np.isfinite(gaps))
        if len(bad):
            raise DataError(f"{place(int(bad[0]))}: a time that is not finite; remove the event or fix its time")
        open_after = np.full(len(counts), np.nan) if open_after is None else open_after
        return cls(gaps, marks, counts, open_after, kinds, place, np.arange(len(gaps)), np.arange(len(counts)))

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def first(self) -> Int64[np.ndarray, " sequences"]:
        """Index of the first event of every sequence; of one without events, where it would be."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def begins(self) -> Bool[np.ndarray, " events"]:
        """Which events are the first of their sequence."""
        begins = np.zeros(len(self.gaps), dtype=bool)
        begins[self.first[self.counts > 0]] = True
        return begins

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all sequences."""
        digest = hashlib.sha256(f"{self.kinds} {len(self)}".encode())
        for array in (self.gaps, self.marks, self.counts, np.nan_to_num(self.open, nan=-1.0)):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:12]

    def from_first_event(self) -> EventData:
        """The sequences as observed from their first event on: it is the start and no event any more. A sequence
        without events is left out, and so is one of a single event that was not observed after it."""
        begun = self.part(np.flatnonzero(self.counts > 0))
        return begun._without(begun.begins)

    def settled(self, ties: str) -> EventData:
        """These sequences with increasing times.

        Args:
            ties: what becomes of events at one time, the start of the observation counting as one: `refuse`;
                `keep-first`, by which a sequence without a later event and without an open interval is left out;
                `spread`, which puts m such events at equal distances into one step of the clock, the smallest gap of
                the whole file, in their order.

        Raises:
            DataError: a time goes back, or there are ties and they are refused.
        """
        self._refuse(self.gaps < 0, "a gap of {gap:g} to {before}; times must increase")
        tied = self.gaps == 0
        if not tied.any():
            return self
        if ties == "keep-first":
            return self._without(tied)
        if ties == "spread":
            return self._spread(tied)
        self._refuse(tied, "at the same time as {before}{others}; {fix}")
        return self

    def check_start(self, most: int) -> None:
        """Whether times may count from the start of the observation: first events do not come so late that the median
        first gap is more than `most` median gaps between events.

        Raises:
            DataError: they do.
        """
        first_gaps, later_gaps = self.gaps[self.begins], self.gaps[~self.begins]
        if len(first_gaps) and len(later_gaps) and np.median(first_gaps) > most * np.median(later_gaps):
            raise DataError(
                f"{self.place(int(self.events[0]))}: first events come {np.median(first_gaps):.3g} after time 0, and "
                "events "
                f"{np.median(later_gaps):.3g} after one another (medians), so times seem to count from elsewhere; "
                f"{_FIX_START}; if sequences were observed from time 0 on: -o task.start=zero"
            )

    def _refuse(self, wrong: Bool[np.ndarray, " events"], message: str) -> None:
        bad = np.flatnonzero(wrong)
        if not len(bad):
            return
        event, more = int(bad[0]), len(bad) - 1
        is_first = bool(self.begins[event])
        text = message.format(
            gap=self.gaps[event],
            before="the start of the observation, which is time 0" if is_first else "the event before",
            others=f" (and {more:,} more events)" if more else "",
            fix=_FIX_TIES,
        )
        raise DataError(f"{self.place(int(self.events[event]))}: {text}" + (f"; or {_FIX_START}" if is_first else ""))

    def _without(self, left_out: Bool[np.ndarray, " events"]) -> EventData:
        """These sequences without some events, whose gaps are 0 or which are the start of the observation."""
        upto = np.concatenate([[0], np.cumsum(~left_out)])
        counts = upto[self.first + self.counts] - upto[self.first]
        nonempty = (counts > 0) | ~np.isnan(self.open)
        return replace(
            self,
            gaps=self.gaps[~left_out],
            marks=self.marks[~left_out],
            events=self.events[~left_out],
            counts=counts[nonempty],
            open=self.open[nonempty],
            sequences=self.sequences[nonempty],
        )

    def _spread(self, tied: Bool[np.ndarray, " events"]) -> EventData:
        step = self.gaps[~tied].min(initial=np.inf)
        if not np.isfinite(step):
            raise DataError(f"{self.place(int(self.events[0]))}: no two events of the file are at different times")
        # A first event has a group of its own, with the start of the observation if it is tied to that.
        opens = ~tied | self.begins
        group = np.cumsum(opens) - 1
        leads = np.flatnonzero(opens)
        with_start = tied[leads]
        size = np.bincount(group) + with_start
        late = step * (np.arange(len(group)) - leads[group] + with_start[group]) / size[group]
        before = np.concatenate([[0.0], late[:-1]])
        before[self.begins] = 0.0
        open_after = self.open.copy()
        has_events = self.counts > 0
        open_after[has_events] -= late[(self.first + self.counts - 1)[has_events]]
        return replace(self, gaps=self.gaps + late - before, open=np.where(open_after > 0, open_after, np.nan))

    def part(self, sequences: Int64[np.ndarray, " sequences"]) -> EventData:
        """These sequences only, in this order."""
        counts = self.counts[sequences]
        start = np.cumsum(counts) - counts
        events = np.repeat(self.first[sequences] - start, counts) + np.arange(counts.sum())
        return replace(
            self,
            gaps=self.gaps[events],
            marks=self.marks[events],
            events=self.events[events],
            counts=counts,
            open=self.open[sequences],
            sequences=self.sequences[sequences],
        )

    def windows(self, most: int) -> EventData:
        """Longer sequences cut into consecutive ones of at most so many events, each observed from the last event of
        the one before it on."""
        # An open interval is in the last one, alone where that many events came before it: each of the others ends with
        # its last event.
        pieces = np.where(np.isnan(self.open), -(-self.counts // most), self.counts // most + 1)
        last = np.cumsum(pieces) - 1
        counts = np.full(int(pieces.sum()), most)
        counts[last] = self.counts - most * (pieces - 1)
        open_after = np.full(len(counts), np.nan)
        open_after[last] = self.open
        return replace(self, counts=counts, open=open_after, sequences=np.repeat(self.sequences, pieces))

    @property
    def mean_gap(self) -> float:
        """Mean time per event: all that was observed, open intervals included, over the number of events. That is the
        inverse of the most likely rate of a Poisson process."""
        return float((self.gaps.sum() + np.nansum(self.open)) / len(self.gaps))

    @property
    def mean_first_gap(self) -> float:
        """Mean time to the first event of a sequence, open intervals included."""
        first, empty = self.begins, self.counts == 0
        return float((self.gaps[first].sum() + np.nansum(self.open[empty])) / first.sum())

    def times(self) -> Float64[np.ndarray, " events"]:
        """The time of every event since the start of its sequence."""
        parts = np.split(self.gaps, self.first[1:])
        return np.concatenate([np.cumsum(part) for part in parts]) if len(self) else self.gaps
