"""The read-in of events: one token per event, and a learned token before the first event."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.events import GAP, TIME, marks_of
from iclbench.layers.label_embedding import label_embedding
from iclbench.layers.stream_read_in import StreamReadIn, linear_start

# Lower bound of gaps: the logarithm of a gap of 0 (padding) must be finite.
_MIN_GAP = 1e-12


def gap_features(y: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape 2"]:
    """Return the gap and its logarithm."""
    gap = y[..., GAP : GAP + 1]
    return torch.cat([gap, gap.clamp_min(_MIN_GAP).log()], -1)


def event_features(y: Float[Tensor, "*shape 3"], marks: int) -> Float[Tensor, "*shape K_and_2"]:
    """Return the gap, its logarithm, and the one-hot mark."""
    return torch.cat([gap_features(y), F.one_hot(marks_of(y), marks).to(y.dtype)], -1)


def event_features_dim(marks: int) -> int:
    """Return the number of event features."""
    return 2 + marks


def timed_features(y: Float[Tensor, "*shape 3"], marks: int) -> Float[Tensor, "*shape K_and_3"]:
    """Return the event features and the absolute time, which gives a set model the order of the events."""
    return torch.cat([event_features(y, marks), y[..., TIME : TIME + 1]], -1)


class EventReadIn(StreamReadIn):
    """A layer that maps events to tokens for a sequence model. A token is a linear map of the gap and its logarithm,
    plus an embedding of the mark. The absolute time is not used, so a stream may have any length.

    Attributes:
        start: the token before the first event, which represents the start of the observation (time 0).
    """

    def __init__(self, marks: int, width: int) -> None:
        super().__init__()
        self.gaps = nn.Linear(2, width)
        self.marks = label_embedding(marks, width)
        self.start = linear_start(width)

    def forward(self, y: Float[Tensor, "B N 3"]) -> Float[Tensor, "B N D"]:
        return self.gaps(gap_features(y)) + self.marks(marks_of(y))
