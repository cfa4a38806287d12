"""Sequences as tensors, on the device where episodes are drawn."""

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
class Packed:
    """The sequences of one part of a file.

    Attributes:
        y: gap, mark and time of every event, one sequence after the other.
        first: index of the first event of every sequence.
        counts: events of every sequence; 0: a window in which nothing happened.
        open: how long a sequence was observed after its last event; infinite: not longer.
        sequence: its number in the file.
        event: number of its first event in the file, counted over all sequences; -1: it has none.
    """

    y: Float[Tensor, "events 3"]
    first: Int[Tensor, " sequences"]
    counts: Int[Tensor, " sequences"]
    open: Float[Tensor, " sequences"]
    sequence: Int[Tensor, " sequences"]
    event: Int[Tensor, " sequences"]

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, data: EventData, scale: float) -> Packed:
        """Sequences whose times are divided by `scale`.

        Raises:
            DataError: a gap is beyond float32, or float32 rounds most times to the time before.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            gaps = (data.gaps / scale).astype(np.float32)
            times = (data.times() / scale).astype(np.float32)
            open_after = np.nan_to_num(data.open / scale, nan=np.inf).astype(np.float32)
        bad = np.flatnonzero(~(np.isfinite(times) & np.isfinite(gaps) & (gaps > 0)))
        if len(bad):
            place = data.place(int(data.events[bad[0]]))
            raise DataError(
                f"{place}: a gap of {data.gaps[bad[0]]:g} in units of {scale:g} is beyond float32; "
                "choose another unit: -o task.time_scale"
            )
        observed = ~np.isnan(data.open)
        too_long = np.flatnonzero(observed & ~(np.isfinite(open_after) & (open_after > 0)))
        if len(too_long):
            raise DataError(
                f"the open interval of {data.open[too_long[0]]:g} after the last event of sequence "
                f"{data.sequences[too_long[0]] + 1} in units of {scale:g} is beyond float32; "
                "choose another unit: -o task.time_scale"
            )
        inside = ~data.begins
        is_equal = inside & (times == np.concatenate([times[:1], times[:-1]]))
        if 2 * is_equal.sum() > inside.sum():
            place = data.place(int(data.events[np.flatnonzero(is_equal)[0]]))
            raise DataError(
                f"{place}: at {times[is_equal][0] * scale:.8g} float32 does not tell most events from those before "
                "them; "
                "let times count from the first event of a sequence: -o task.start=first"
            )
        y = np.empty((len(gaps), 3), dtype=np.float32)
        y[:, GAP], y[:, MARK], y[:, TIME] = gaps, data.marks, times
        numbers = np.concatenate([data.events, [-1]])
        event = numbers[np.where(data.counts > 0, data.first, -1)]
        parts = (data.first, data.counts, open_after, data.sequences, event)
        return cls(torch.from_numpy(y), *(torch.from_numpy(np.ascontiguousarray(array)) for array in parts))

    def to(self, device: torch.device) -> Packed:
        """The sequences on a device."""
        return Packed(*(getattr(self, field.name).to(device) for field in fields(self)))

    def beginnings(
        self, sequences: Int[Tensor, " B"], points: int
    ) -> tuple[Float[Tensor, "B N 3"], Bool[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """The first `points` points of these sequences, which of them are valid, and which are events.

        After the last event of a sequence that was observed for longer comes one point that is not an event: the open
        interval, with the mark -1 and the time of its end. Invalid points have the gap 1 and are 0 otherwise: the
        density of a gap of 0 is not finite, and the gradients of masked values would not be either.
        """
        counts, position = self.counts[sequences].unsqueeze(1), torch.arange(points, device=sequences.device)
        events = position < counts
        rows = (self.first[sequences].unsqueeze(1) + position).clamp(max=len(self.y) - 1)
        padding = torch.tensor([1.0, 0.0, 0.0], device=sequences.device)
        y = torch.where(events.unsqueeze(-1), self.y[rows], padding)
        open_after = self.open[sequences].unsqueeze(1)
        censored = (position == counts) & open_after.isfinite()
        last_event = (self.first[sequences] + self.counts[sequences] - 1).clamp(min=0)  # of no event: not read
        last_time = torch.where(counts > 0, self.y[last_event, TIME].unsqueeze(1), 0.0)
        interval = torch.stack([open_after, torch.full_like(open_after, CENSORED), last_time + open_after], -1)
        return torch.where(censored.unsqueeze(-1), interval, y), events | censored, events
