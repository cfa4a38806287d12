"""The memory of a Transformer: cached keys and values of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord


@dataclass(frozen=True)
class Memory(TensorRecord):
    """Keys and values, a tensor `(B, H, T, C)` per layer, without gaps: each of the T slots holds a token."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def batch(self) -> int:
        return self.keys[0].shape[0]

    @property
    def length(self) -> int:
        """Number of tokens, T."""
        return self.keys[0].shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self.keys[0].dtype

    def rows(self, index: slice | Sequence[int] | Int[Tensor, " n"]) -> Memory:
        """Return the memory of the sequences with these indices."""
        return self[index]

    def expand(self, batch: int) -> Memory:
        """Expand the memory of one sequence to `batch` sequences without copying it. A memory of `batch` sequences is
        unchanged."""
        return self.map(lambda t: t.expand(batch, -1, -1, -1))

    def last(self, length: int) -> Memory:
        """Return the last `length` tokens."""
        return self.map(lambda t: t[:, :, t.shape[2] - length :])

    def followed_by(self, later: Memory) -> Memory:
        """Return this memory followed by a later memory, in the precision of the later memory."""
        pairs = zip([*self.keys, *self.values], [*later.keys, *later.values], strict=True)
        tensors = tuple(torch.cat([a.to(b), b], dim=2) for a, b in pairs)
        return Memory(tensors[: len(self.keys)], tensors[len(self.keys) :])

    def plus(self, other: Memory, weight: float) -> Memory:
        """Return the sum of this memory and `weight` times the other memory, slot by slot, in the precision of this
        memory."""
        return Memory(_plus(self.keys, other.keys, weight), _plus(self.values, other.values, weight))

    def relative_to(self, other: Memory) -> Float[Tensor, " B"]:
        """Return the ratio of the norms of this memory and the other memory, averaged over keys and values of all
        layers."""
        pairs = zip([*self.keys, *self.values], [*other.keys, *other.values], strict=True)
        return torch.stack([_norm(a) / _norm(b) for a, b in pairs]).mean(0)


def _plus(tensors: tuple[Tensor, ...], addends: tuple[Tensor, ...], weight: float) -> tuple[Tensor, ...]:
    return tuple(a + weight * b.to(a) for a, b in zip(tensors, addends, strict=True))


def _norm(t: Tensor) -> Float[Tensor, " B"]:
    return t.float().flatten(1).norm(dim=1)
