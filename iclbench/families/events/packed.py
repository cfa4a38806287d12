"""Event sequences as tensors on the device of the episodes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.errors import DataError
from iclbench.core.events import CENSORED, GAP, MARK, TIME
from iclbench.families.events.event_data import EventData


@dataclass(frozen=True)
class PackedSequences:
    """The sequences of one part of a file.

    Attributes:
        y: gap, mark and time of every event, one sequence after the other.
        first_event: index of the first event of every sequence.
        counts: number of events of every sequence, 0 for a window without events.
        open_intervals: time of observation after the last event of every sequence; infinite if the observation ends
            with this event.
        sequence_number: number of every sequence in the file.
        first_event_number: number of the first event of every sequence, counted over all sequences of the file; -1 if
            the sequence has no events.
    """

    y: Float[Tensor, "events 3"]
    first_event: Int[Tensor, " sequences"]
    counts: Int[Tensor, " sequences"]
    open_intervals: Float[Tensor, " sequences"]
    sequence_number: Int[Tensor, " sequences"]
    first_event_number: Int[Tensor, " sequences"]

    def __len__(self) -> int:
        return len(self.first_event)

    @classmethod
    def of(cls, data: EventData, scale: float) -> PackedSequences:
        """Pack sequences with times divided by `scale`.

        Raises:
            DataError: a gap or an open interval is out of range for float32, or float32 rounds most times to the
                previous time.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            gaps = (data.gaps / scale).astype(np.float32)
            times = (data.times() / scale).astype(np.float32)
            open_intervals = np.nan_to_num(data.open_intervals / scale, nan=np.inf).astype(np.float32)
        out_of_range = np.flatnonzero(~(np.isfinite(times) & np.isfinite(gaps) & (gaps > 0)))
        if len(out_of_range):
            location = data.location_of(int(data.event_numbers[out_of_range[0]]))
            raise DataError(
                f"{location}: the gap of {data.gaps[out_of_range[0]]:g} in units of {scale:g} is out of range for "
                "float32; choose another unit: -o task.time_scale"
            )
        is_censored = ~np.isnan(data.open_intervals)
        wrong_intervals = np.flatnonzero(is_censored & ~(np.isfinite(open_intervals) & (open_intervals > 0)))
        if len(wrong_intervals):
            raise DataError(
                f"the open interval of {data.open_intervals[wrong_intervals[0]]:g} after the last event of sequence "
                f"{data.sequence_numbers[wrong_intervals[0]] + 1} in units of {scale:g} is out of range for float32; "
                "choose another unit: -o task.time_scale"
            )
        is_later = ~data.is_first
        is_equal = is_later & (times == np.concatenate([times[:1], times[:-1]]))
        if 2 * is_equal.sum() > is_later.sum():
            location = data.location_of(int(data.event_numbers[np.flatnonzero(is_equal)[0]]))
            raise DataError(
                f"{location}: at {times[is_equal][0] * scale:.8g} float32 does not distinguish most events from the "
                "events before them; count times from the first event of every sequence: -o task.start=first"
            )
        y = np.empty((len(gaps), 3), dtype=np.float32)
        y[:, GAP], y[:, MARK], y[:, TIME] = gaps, data.marks, times
        event_numbers = np.concatenate([data.event_numbers, [-1]])
        first_event_numbers = event_numbers[np.where(data.counts > 0, data.first_event, -1)]
        arrays = (data.first_event, data.counts, open_intervals, data.sequence_numbers, first_event_numbers)
        return cls(torch.from_numpy(y), *(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def to(self, device: torch.device) -> PackedSequences:
        """Return the sequences on a device."""
        return PackedSequences(*(getattr(self, field.name).to(device) for field in fields(self)))

    def first_points(
        self, sequences: Int[Tensor, " B"], points: int
    ) -> tuple[Float[Tensor, "B N 3"], Bool[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """Return the first `points` points of these sequences, whether they are valid, and whether they are events.

        If the observation continues after the last event of a sequence, the next point is the open interval, with the
        mark -1 and the time of its end. Invalid points have the gap 1, since the density of a gap of 0 and the
        gradients of masked values would not be finite; their other values are 0.
        """
        counts, position = self.counts[sequences].unsqueeze(1), torch.arange(points, device=sequences.device)
        is_event = position < counts
        rows = (self.first_event[sequences].unsqueeze(1) + position).clamp(max=len(self.y) - 1)
        padding = torch.tensor([1.0, 0.0, 0.0], device=sequences.device)
        y = torch.where(is_event.unsqueeze(-1), self.y[rows], padding)
        open_interval = self.open_intervals[sequences].unsqueeze(1)
        is_censored = (position == counts) & open_interval.isfinite()
        last_event = (self.first_event[sequences] + self.counts[sequences] - 1).clamp(min=0)  # not used without events
        last_time = torch.where(counts > 0, self.y[last_event, TIME].unsqueeze(1), 0.0)
        interval = torch.stack([open_interval, torch.full_like(open_interval, CENSORED), last_time + open_interval], -1)
        return torch.where(is_censored.unsqueeze(-1), interval, y), is_event | is_censored, is_event
