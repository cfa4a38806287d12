"""Events to tokens: one token per event, and a learned one before the first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.events import GAP, TIME, marks_of
from iclbench.layers.label_embedding import label_embedding

# What a logarithm of a gap is taken of at least: gaps of 0 (padding) must not give infinities.
_LEAST = 1e-12


def gap_features(y: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape 2"]:
    """The gap and its logarithm."""
    gap = y[..., GAP : GAP + 1]
    return torch.cat([gap, gap.clamp_min(_LEAST).log()], -1)


def event_features(y: Float[Tensor, "*shape 3"], marks: int) -> Float[Tensor, "*shape K_and_2"]:
    """The gap, its logarithm, and the mark one-hot."""
    return torch.cat([gap_features(y), F.one_hot(marks_of(y), marks).to(y.dtype)], -1)


def event_features_dim(marks: int) -> int:
    return 2 + marks


def timed_features(y: Float[Tensor, "*shape 3"], marks: int) -> Float[Tensor, "*shape K_and_3"]:
    """Event features and the absolute time, from which alone a set model knows the order."""
    return torch.cat([event_features(y, marks), y[..., TIME : TIME + 1]], -1)


class EventReadIn(nn.Module):
    """Tokens of a sequence model: a linear map of the gap and its logarithm, plus an embedding of the mark. Order is
    that of the sequence, so that the absolute time is not read, and a stream may go on for ever.

    Attributes:
        start: the token before the first event: the observation begins at time 0.
    """

    def __init__(self, marks: int, width: int) -> None:
        super().__init__()
        self.gaps = nn.Linear(2, width)
        self.marks = label_embedding(marks, width)
        # As large as what a read-in with its default initial weights gives.
        self.start = nn.Parameter(torch.rand(width) * 2**0.5 - 2**-0.5)

    def forward(self, y: Float[Tensor, "B N 3"]) -> Float[Tensor, "B N D"]:
        return self.gaps(gap_features(y)) + self.marks(marks_of(y))
