"""The read-in layers of streams: one token per element, and a learned token before the first element."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class StreamReadIn(nn.Module, ABC):
    """A layer that maps the elements of a stream to tokens.

    Attributes:
        start: the token before the first element.
    """

    start: nn.Parameter

    @abstractmethod
    def forward(self, y: Tensor) -> Float[Tensor, "B N D"]:
        """Return the tokens of the elements, `(B, N, ...)`."""


def linear_start(width: int) -> nn.Parameter:
    """Create a start token, initialised like the bias of a PyTorch linear layer with two inputs.

    Event tokens are a linear map of two inputs, the gap and its logarithm. Streams of vectors have the same start
    token, whatever the dimension of the vectors.
    """
    return nn.Parameter(torch.rand(width) * 2**0.5 - 2**-0.5)


class TokenReadIn(StreamReadIn):
    """A table with one vector per token of the vocabulary. The initial vectors have a norm of about 1."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.start = nn.Parameter(torch.randn(width) * width**-0.5)

    def forward(self, y: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        return self.embedding(y)


class VectorReadIn(StreamReadIn):
    """One linear layer, which maps each vector to a token."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, width)
        self.start = linear_start(width)

    def forward(self, y: Float[Tensor, "B N Dy"]) -> Float[Tensor, "B N D"]:
        return self.linear(y)
