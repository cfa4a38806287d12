"""What a causal model reads before it is asked: related datasets, each closed by a separator, and then the context.

Everything is a pair of tokens, so that a model meets inputs at even and outputs at odd places throughout. A dataset
that is absent contributes neither points nor separator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.core.episodes import Points, take, valid_first
from iclbench.core.errors import UsageError
from iclbench.core.records import TensorRecord

CONTEXT, RELATED, SEPARATOR = range(3)


@dataclass(frozen=True)
class Prompt(TensorRecord):
    """Points in the order they are read, and the role of each.

    Attributes:
        points: related datasets, with a place for a separator behind each, and the context.
        part: `CONTEXT`, `RELATED` or `SEPARATOR`; None where all is context.
    """

    points: Points
    part: Int[Tensor, "B N"] | None = None

    @classmethod
    def of(cls, context: Points, related: Points | None = None) -> Prompt:
        """The prompt of a context, `(B, N, .)`, and its related datasets, `(B, J, N, .)`.

        Raises:
            UsageError: inputs or outputs of related datasets have another dimension.
        """
        if related is None:
            return cls(context)
        for name, related_values, context_values in (
            ("inputs", related.x, context.x),
            ("outputs", related.y, context.y),
        ):
            if related_values.shape[3:] != context_values.shape[2:]:
                raise UsageError(
                    f"related datasets have {name} of dimension {_dimension(related_values, 3)}, the context of "
                    f"dimension {_dimension(context_values, 2)}; give related datasets of the same task"
                )
        closed = related.map(_with_place_behind)
        closed.mask[:, :, -1] = related.mask.any(2)
        part = torch.full_like(closed.mask, RELATED, dtype=torch.long)
        part[:, :, -1] = SEPARATOR
        context_part = torch.full_like(context.mask, CONTEXT, dtype=torch.long)
        points = closed.map(lambda t: t.flatten(1, 2)).append(context)
        return cls(points, torch.cat([part.flatten(1), context_part], 1))

    def aligned(self, padding: Literal["left", "right"]) -> Prompt:
        """The prompt without gaps, as long as the longest of the batch: masked points come first (left) or last."""
        mask = self.points.mask
        longest = int(mask.sum(1).max())
        if padding == "right":
            order = valid_first(mask)[:, :longest]
        else:
            order = valid_first(~mask)[:, mask.shape[1] - longest :]
        return self.map(lambda t: take(t, order))

    def segments(self, size: int) -> Iterator[Prompt]:
        """Stretches of at most `size` points; none where there are no points."""
        for start in range(0, self.points.count, size):
            yield self.map(lambda t, first=start: t[:, first : first + size])  # type: ignore[misc]


class Marks(nn.Module):
    """Marks of related datasets: a vector added to their tokens, and a pair of tokens that closes each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.related = nn.Parameter(torch.zeros(width))
        self.separator = nn.Parameter(torch.randn(2, width))

    def forward(self, tokens: Float[Tensor, "B T D"], part: Int[Tensor, "B N"]) -> Float[Tensor, "B T D"]:
        kind = part[:, :, None, None]
        pairs = tokens.view(*part.shape, 2, -1) + (kind == RELATED) * self.related
        return torch.where(kind == SEPARATOR, self.separator, pairs).flatten(1, 2)


def _dimension(t: Tensor, axis: int) -> int:
    """Labels have no axis for it."""
    return t.shape[axis] if t.dim() > axis else 0


def _with_place_behind(t: Tensor) -> Tensor:
    """One more point at the end of every related dataset, `(B, J, N + 1, ...)`."""
    return torch.cat([t, t.new_zeros(*t.shape[:2], 1, *t.shape[3:])], 2)
